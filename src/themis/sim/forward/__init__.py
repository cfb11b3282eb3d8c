"""What-if simulation from the present: the current state under other policies, machines or apps, until its apps end."""
