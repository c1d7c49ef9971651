"""Tree shapes as actions: what is recorded of drafters, what a cycle costs, replay, planner, policies."""
