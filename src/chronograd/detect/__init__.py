"""Object detection: boxes and priors, matching, loss, augmentation, suppression, average precision, and sets of
annotated images.

SSD as in Liu et al., "SSD: single shot multibox detector", 2016, arXiv:1512.02325; one file for each section of the
paper. The network is `chronograd.models.ssd`. A box is (left, top, right, bottom) in units of the image, 0 … 1, unless
a name says otherwise: `_cxcywh` is centre and size. Class 0 is the background, and objects have 1 … K.
"""
