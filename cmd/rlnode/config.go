package main

import (
	"fmt"
	"os"

	"github.com/alecthomas/kong"

	"github.com/rlnode/rlnode/internal/yaml"
)

// maxConfig bounds the configuration file, in bytes.
const maxConfig = 1 << 20

// configFile finds values of serve's flags in the file of --config. Flags and the environment take precedence over it.
type configFile struct {
	name   string // of the file last read; empty if none
	values map[string]string
}

// Validate implements kong.Resolver.
func (*configFile) Validate(*kong.Application) error { return nil }

// Resolve implements kong.Resolver: kong calls it for each flag that is not on the command line.
func (c *configFile) Resolve(ctx *kong.Context, parent *kong.Path, flag *kong.Flag) (any, error) {
	if parent.Command == nil || parent.Command.Name != "serve" || flag.Name == "config" {
		return nil, nil
	}
	if err := c.load(ctx, parent.Command.Flags); err != nil {
		return nil, err
	}
	for _, env := range flag.Envs {
		if _, ok := os.LookupEnv(env); ok {
			return nil, nil
		}
	}
	if value, ok := c.values[flag.Name]; ok {
		return value, nil
	}
	return nil, nil
}

// load reads the file that --config names, once.
func (c *configFile) load(ctx *kong.Context, flags []*kong.Flag) error {
	known := make(map[string]bool)
	name := ""
	for _, f := range flags {
		known[f.Name] = f.Name != "config" && f.Name != "help"
		if f.Name == "config" {
			name, _ = ctx.FlagValue(f).(string)
		}
	}
	if name == "" || name == c.name {
		return nil
	}
	src, err := readFile(&environment{}, name, maxConfig)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	if c.values, err = parseConfig(name, src, known); err != nil {
		return err
	}
	c.name = name
	return nil
}

// parseConfig reads a YAML mapping from names of flags, without leading dashes, to single values.
func parseConfig(name string, src []byte, known map[string]bool) (map[string]string, error) {
	root, err := yaml.Parse(string(src))
	if err != nil {
		return nil, fmt.Errorf("%s:%w", name, err)
	}
	fail := func(at yaml.Pos, format string, args ...any) error {
		return fmt.Errorf("%s:%d:%d: %s", name, at.Line, at.Column, fmt.Sprintf(format, args...))
	}
	values := make(map[string]string)
	if root.Kind == yaml.Null {
		return values, nil
	}
	if root.Kind != yaml.Map {
		return nil, fail(root.Pos, "it is not a mapping of settings to values")
	}
	for key, value := range root.Pairs {
		if !known[key.Text] {
			return nil, fail(key.Pos, "unknown setting %q", key.Text)
		}
		if _, twice := values[key.Text]; twice {
			return nil, fail(key.Pos, "%q stands twice", key.Text)
		}
		switch value.Kind {
		case yaml.Null, yaml.Map, yaml.List:
			return nil, fail(key.Pos, "%q needs a single value", key.Text)
		}
		values[key.Text] = value.Text
	}
	return values, nil
}
