"""The browser code of our widgets: stored notebooks have none, and whatever shows a stored widget adds it.

A change of a widget's code therefore changes no notebook. The same holds for the translator's trained model,
which is a file of the package.
"""

CODE = ("_esm", "_css")
PACKAGE = "mha_course."
TRANSLATOR = "mha_course.widgets.translator.Translator"


def is_ours(model):
    """Whether a stored model is that of a widget of the course."""
    return model["state"].get("_anywidget_id", "").startswith(PACKAGE)


def data_in_files(state):
    """Return the part of a widget's state that a file of the package holds too: the translator's model."""
    shown = str(state.get("num_heads"))
    if state["_anywidget_id"] != TRANSLATOR or shown not in state.get("files", {}):
        return {}
    from mha_course.widgets.translator import model_in_file

    return {"models": {shown: model_in_file(state["files"][shown])}}


def without_code(model):
    """Return a stored model without what the package has: its code, and data that are files."""
    if not is_ours(model):
        return model
    in_package = data_in_files(model["state"])
    state = {
        key: value
        for key, value in model["state"].items()
        if key not in CODE and not (key in in_package and value == in_package[key])
    }
    return model | {"state": state}


def with_code(states):
    """Return the stored states of a notebook's widgets, each of ours with what the package has of it."""
    from mha_course.widgets import (
        widget_sources,
    )  # here, since pytest loads this file before it checks shapes

    sources = widget_sources()
    models = {
        name: model
        | {
            "state": data_in_files(model["state"])
            | model["state"]
            | sources[model["state"]["_anywidget_id"]]
        }
        if is_ours(model)
        else model
        for name, model in states["state"].items()
    }
    return states | {"state": models}
