"""What tasks report of a trained model besides its scores: where it looks, and its state."""
