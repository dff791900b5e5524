package main

import "testing"

func TestDecidedText(t *testing.T) {
	if have := decidedText(map[string]int64{"owner": 2, "lease": 7,
		"forward": 2}); have != "7 by lease, 2 by forward, 2 by owner" {
		t.Errorf("have %q", have)
	}
}
