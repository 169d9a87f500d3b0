"""As in google/colab/output/_widgets.py: a hook adds the manager's address to each widget that is displayed.

The front end shows a widget of somebody else's package only where it finds this address.
"""

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
MANAGERS = {"5.0.0a": "https://example.invalid/5.0.0a/manager.js"}

_installed_url = None  # anywidget reads this name


def enable_custom_widget_manager(version="5.0.0a"):
    if version not in MANAGERS:
        raise ValueError(f"Unknown widgets version: {version}")
    _install(MANAGERS[version])


def disable_custom_widget_manager():
    _install(None)


def _install(url):
    global _installed_url
    from IPython import get_ipython  # here, since Colab's kernel is running by then

    publisher = get_ipython().display_pub
    if url and not _installed_url:
        publisher.register_hook(_add_address)
    elif _installed_url and not url:
        publisher.unregister_hook(_add_address)
    _installed_url = url


def _add_address(message):
    content = message.get("content", {})
    if _installed_url and content.get("data", {}).get(WIDGET_VIEW):
        shown = content.setdefault("metadata", {}).setdefault(WIDGET_VIEW, {})
        shown["colab"] = {"custom_widget_manager": {"url": _installed_url}}
    return message
