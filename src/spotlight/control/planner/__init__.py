"""The planner: how many seeds to preview, for whom, with how many steps, in the time that training leaves."""
