"""The formats of pictures that are read, in data sets and by a server.

Pillow knows others, some of which start programs (EPS) or break in many ways.
"""

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
