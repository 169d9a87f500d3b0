"""The browser code of our widgets: stored notebooks have none, and whatever shows a stored widget adds it.

A change of a widget's code therefore changes no notebook.
"""

CODE = ("_esm", "_css")
PACKAGE = "mha_course."


def is_ours(model):
    """Whether a stored model is that of a widget of the course."""
    return model["state"].get("_anywidget_id", "").startswith(PACKAGE)


def without_code(model):
    """Return a stored model without its code, which the package has."""
    if not is_ours(model):
        return model
    state = {key: value for key, value in model["state"].items() if key not in CODE}
    return model | {"state": state}


def with_code(states):
    """Return the stored states of a notebook's widgets, each model of ours with the code of its class."""
    from mha_course.widgets import (
        widget_sources,
    )  # here, since pytest loads this file before it checks shapes

    sources = widget_sources()
    models = {
        name: model
        | {"state": model["state"] | sources[model["state"]["_anywidget_id"]]}
        if is_ours(model)
        else model
        for name, model in states["state"].items()
    }
    return states | {"state": models}
