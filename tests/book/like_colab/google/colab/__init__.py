"""A stand-in for the part of google.colab that widgets meet, written after its published source."""
