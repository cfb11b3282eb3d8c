"""Winner determination: which rows of all bids win together, and on which machines, to a proven gap."""
