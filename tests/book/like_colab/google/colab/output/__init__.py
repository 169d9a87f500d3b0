"""What a notebook imports to switch the manager of custom widgets on or off."""

from google.colab.output._widgets import disable_custom_widget_manager, enable_custom_widget_manager

__all__ = ["disable_custom_widget_manager", "enable_custom_widget_manager"]
