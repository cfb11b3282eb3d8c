"""What-if forward: the present state under other policies, machines or apps, simulated until its apps end."""
