"""A link at each heading that opens an issue about this section of this version of the book."""

import re
from html import unescape
from urllib.parse import quote

from mha_lib import __version__

HEADING = re.compile(
    r'(<h[1-6]>)(.*?)(<a class="headerlink" href="(#[^"]*)" title="Link to this heading">#</a>)'
)
LINK = (
    '<a class="headerlink feedback" href="{}" title="Report a problem in this section"'
    ' aria-label="Report a problem in this section">✎</a>'
)


def put_feedback(app, pagename, templatename, context, doctree):
    """Put the link behind the permalink of each heading. It needs no script."""
    issues = f"{app.config.html_theme_options['repository_url']}/issues/new"
    title = quote(f"Issue on page /{pagename}.html", safe="/")

    def link(match):
        section = unescape(re.sub(r"<[^>]*>|\\[()]", "", match[2]))
        about = quote(f"Book {__version__}, section: {section} ({match[4]})\n\n")
        return match[0] + LINK.format(f"{issues}?title={title}&amp;body={about}")

    if doctree is not None:
        context["body"] = HEADING.sub(link, context["body"])
