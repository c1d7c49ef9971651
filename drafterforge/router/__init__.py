"""From a prompt to a law over drafters: features, net, and the files they are kept in."""
