"""The pictures of the pages: `drawing` contains the vocabulary, every other module the pictures of one page.

A chapter draws with one line, such as `multi_head.loop()`. What a picture shows of data or of a model is
computed in the chapter and passed to it; a picture computes only positions and colours.
"""
