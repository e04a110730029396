"""What users test their own parts with: a conformance suite for ledgers."""
