"""The panels of a run: each is a struct of numbers made from the view, which page, report, status and API share.

`surface/html` has one template per panel. A panel makes no text beyond sentences and captions, and no markup.
"""
