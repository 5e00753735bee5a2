"""One file per verb; heavy imports happen inside the verb, after arguments are parsed."""
