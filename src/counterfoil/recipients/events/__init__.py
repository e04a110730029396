"""Events with the broker's own acknowledgement as proof: one message, one attempt, nothing kept to be sent later."""
