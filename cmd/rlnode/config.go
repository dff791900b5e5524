package main

import (
	"fmt"
	"os"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// maxConfig bounds the configuration file.
const maxConfig = 1 << 20

// configFile finds values of serve's flags in the file of --config. Flags and the environment come before it.
type configFile struct {
	name   string // of the file read last; empty: none
	values map[string]string
}

// Validate implements kong.Resolver.
func (*configFile) Validate(*kong.Application) error { return nil }

// Resolve implements kong.Resolver: kong asks it for each flag that is not on the command line.
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

// parseConfig reads a YAML mapping of flags' names, without the dashes before them, to single values.
func parseConfig(name string, src []byte, known map[string]bool) (values map[string]string, err error) {
	defer func() {
		if r := recover(); r != nil {
			values, err = nil, fmt.Errorf("%s: it is no YAML", name)
		}
	}()
	file, err := parser.ParseBytes(src, 0)
	if err != nil {
		return nil, fmt.Errorf("%s:%s", name, yaml.FormatError(err, false, false))
	}
	values = make(map[string]string)
	for i, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		if i > 0 {
			return nil, fmt.Errorf("%s: it has more than one document", name)
		}
		pairs, ok := mapping(doc.Body)
		if !ok {
			return nil, fmt.Errorf("%s: it is not a mapping of settings to values", placeOf(name, doc.Body))
		}
		for _, pair := range pairs {
			key := pair.Key.GetToken().Value
			_, twice := values[key]
			switch value, ok := scalar(pair.Value); {
			case !known[key]:
				return nil, fmt.Errorf("%s: unknown setting %q", placeOf(name, pair.Key), key)
			case twice:
				return nil, fmt.Errorf("%s: %q stands twice", placeOf(name, pair.Key), key)
			case !ok:
				return nil, fmt.Errorf("%s: %q needs a single value", placeOf(name, pair.Key), key)
			default:
				values[key] = value
			}
		}
	}
	return values, nil
}

func mapping(n ast.Node) ([]*ast.MappingValueNode, bool) {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	}
	return nil, false
}

// scalar is a value as it is written.
func scalar(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	return "", false
}

func placeOf(name string, n ast.Node) string {
	at := n.GetToken().Position
	return fmt.Sprintf("%s:%d:%d", name, at.Line, at.Column)
}
