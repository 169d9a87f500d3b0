"""Settings of nbconvert in the course's environment, where `make book` puts a link to this file.

Stored widgets have no code, so an HTML file made from a chapter shows the pictures that stand in for them.
"""

from nbconvert import HTMLExporter

KINDS = HTMLExporter().default_config.NbConvertBase.display_data_priority
get_config().HTMLExporter.WidgetsDataTypeFilter.display_data_priority = [
    kind for kind in KINDS if "widget-view" not in kind
]
