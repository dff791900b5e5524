package main

import (
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/internal/expect"
)

func TestRegionSettings(t *testing.T) {
	clearEnv(t)
	t.Setenv("RLNODE_WAN_JOIN", "10.0.0.1,eu.example.com:17948")
	config := file(t, "config.yaml", "primary-region: eu\nwan-port: 17949\n")
	c, err := parseServe("--config", config, "--region", "us", "--cluster-bind", "192.0.2.1", "--insecure-cluster")
	if err == nil {
		err = c.complete()
	}
	if err != nil || c.WANPort != 17949 || c.PrimaryRegion != "eu" ||
		strings.Join(c.WANJoin, " ") != "10.0.0.1 eu.example.com:17948" {
		t.Errorf("have %d, %q, %v, %v", c.WANPort, c.PrimaryRegion, c.WANJoin, err)
	}
	t.Setenv("RLNODE_WAN_JOIN", "")
	c, err = parseServe("--region", "us")
	if err != nil || c.complete() != nil ||
		c.PrimaryRegion != "" || c.WANPort != 7948 || len(c.WANJoin) != 0 {
		t.Errorf("have %d, %q, %v, %v, want the defaults", c.WANPort, c.PrimaryRegion, c.WANJoin, err)
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--wan-port", "65536"}, "--wan-port: 65536 is not in 0…65535"},
		{[]string{"--wan-port", "-1"}, "--wan-port"},
		{[]string{"--wan-join", "a:b"}, `--wan-join: "a:b"`},
		{[]string{"--wan-join", "http://x"}, "--wan-join"},
		{[]string{"--wan-join", strings.Repeat("x,", 64) + "x"}, "--wan-join: more than 64 addresses"},
		{[]string{"--primary-region", strings.Repeat("x", 65)}, "--primary-region"},
		{[]string{"--primary-region", "a\nb"}, "--primary-region"},
		{[]string{"--region", ""}, "--region"},
	} {
		c, err := parseServe(test.args...)
		if err == nil {
			err = c.complete()
		}
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.40v: have %v, want %q", test.args, err, test.want)
		}
	}
}

// TestRegionRenamed: a node that is started with another region makes a second
// region, and says so. Once the first is removed, nothing is said.
func TestRegionRenamed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const warning = "the region of this node has another name than before"
	expectWarning := func(region string, want bool) *runningNode {
		t.Helper()
		s := start(t, dir, "--name", "n1", "--region", region)
		if strings.Contains(s.log.String(), warning) != want {
			t.Errorf("%s: got\n%s\nwant a warning: %v", region, s.log, want)
		}
		return s
	}

	expectWarning("eu", false).stop()
	expectWarning("eu", false).stop()
	s := expectWarning("us", true)
	if !strings.Contains(s.log.String(), "was=eu region=us") {
		t.Errorf("got\n%s", s.log)
	}
	code, stdout, stderr := tool(t, "", "remove", "--region", "eu", "--admin", s.admin)
	expect.Equal(t, code, 0, "remove: %s%s: exit code", stdout, stderr)
	s.stop()
	expectWarning("us", false).stop()
}

func TestRemoveNeedsOneThing(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ args, want string }{
		{"remove", "the node's name, or --region, is missing"},
		{"remove n1 --region eu", "exclude each other"},
		{"remove --region eu --admin http://127.0.0.1:1", "can't reach"},
	} {
		code, stdout, stderr := tool(t, "", strings.Fields(test.args)...)
		if code == 0 || !strings.Contains(stdout+stderr, test.want) {
			t.Errorf("%s: have %d, %q, want %q", test.args, code, stdout+stderr, test.want)
		}
	}
}

func TestPrintRegions(t *testing.T) {
	var out strings.Builder
	regions := []admin.Region{{Name: "eu", Primary: true, Reachable: true, Members: 3,
		Committed: true}, {Name: "u\x1bs"}}
	expect.NoError(t, printRegions(&out, regions, 7))
	for _, want := range []string{"all regions use rules version 7 or later",
		"eu        yes      3        yes      yes", `"u\x1bs"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("have\n%s, want it to have %q", out.String(), want)
		}
	}
	out.Reset()
	if err := printRegions(&out, regions, 0); err != nil ||
		!strings.Contains(out.String(), "no version of the rules is known to be in use") {
		t.Errorf("have %q, %v", out.String(), err)
	}
}
