"""Networks that we add to torchvision's and timm's, one file per family."""
