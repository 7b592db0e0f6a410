"""The engines that nodes run: where each answers, and what it can be asked to do."""
