"""Backends: ways for ranks to work together. One file each, with the command and the environment of a rank."""
