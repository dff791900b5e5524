package api

import (
	"strings"
	"testing"
)

// fixedDecider decides nothing.
type fixedDecider struct{ Decider }

func TestOpenErrors(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"CertFile":           func(c *Config) { c.CertFile = "x" },
		"/nowhere":           func(c *Config) { c.CertFile, c.KeyFile = "/nowhere", "/nowhere" },
		"Decider is missing": func(c *Config) { c.Decider, c.Node = nil, "" },
		"/no-tokens":         func(c *Config) { c.TokensFile = "/no-tokens" },
	} {
		config := Config{Node: "n", Decider: fixedDecider{}}
		change(&config)
		if d, err := Open(config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("have %v, %v, want %q", d, err, want)
		}
	}
}
