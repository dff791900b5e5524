package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/rlnode/rlnode/internal/yaml"
)

// maxConfig bounds the configuration file, in bytes.
const maxConfig = 1 << 20

// configFile provides values of serve's flags from the --config file. Flags and
// the environment take precedence.
type configFile struct {
	name    string // of the file last read; empty if none
	values  map[string]configValue
	origins map[string]string // by flag, unless it is on the command line: the variable or file:line of its value
}

// configValue is a value in the file.
type configValue struct {
	text string
	line int32
}

// configError is a mistake in the file itself. Kong would blame a flag for it.
type configError struct{ error }

// Validate implements kong.Resolver.
func (*configFile) Validate(*kong.Application) error { return nil }

// Resolve implements kong.Resolver: kong calls it for each flag that is not on the command line.
func (c *configFile) Resolve(ctx *kong.Context, parent *kong.Path, flag *kong.Flag) (any, error) {
	if parent.Command == nil || parent.Command.Name != "serve" || flag.Name == "config" {
		return nil, nil
	}
	if err := c.load(ctx, parent.Command.Flags); err != nil {
		return nil, configError{err}
	}

	if c.origins == nil {
		c.origins = make(map[string]string)
	}

	for _, env := range flag.Envs {
		if _, ok := os.LookupEnv(env); ok {
			// Kong reads the variable itself. Only its name is noted here.
			c.origins["--"+flag.Name] = env
			return nil, nil
		}
	}

	if value, ok := c.values[flag.Name]; ok {
		c.origins["--"+flag.Name] = fmt.Sprintf("%s:%d", c.name, value.line)
		return value.text, nil
	}

	return nil, nil
}

// prefixOrigins prefixes each line that begins with a flag with the origin of
// its value, unless that is the command line.
func (c *configFile) prefixOrigins(err error) error {
	if err == nil {
		return nil
	}
	lines := strings.Split(err.Error(), "\n")
	for i, line := range lines {
		flag, _, _ := strings.Cut(line, " ")
		origin := c.origins[strings.TrimRight(flag, ":,")]
		if !strings.Contains(line, origin) {
			lines[i] = origin + ": " + line
		}
	}
	return rewordedError{err, strings.Join(lines, "\n")}
}

// rewordedError is an error with another text.
type rewordedError struct {
	error
	text string
}

func (r rewordedError) Error() string { return r.text }

func (r rewordedError) Unwrap() error { return r.error }

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
	c.values, err = parseConfig(name, src, known)
	if err != nil {
		return err
	}

	c.name = name
	return nil
}

// parseConfig reads a YAML mapping from names of flags, without leading dashes, to single values.
func parseConfig(name string, src []byte, known map[string]bool) (map[string]configValue, error) {
	root, err := yaml.Parse(string(src))
	if err != nil {
		return nil, fmt.Errorf("%s:%w", name, err)
	}

	fail := func(at yaml.Pos, format string, args ...any) error {
		return fmt.Errorf("%s:%d:%d: %s", name, at.Line, at.Column, fmt.Sprintf(format, args...))
	}
	values := make(map[string]configValue)
	if root.Kind == yaml.Null {
		return values, nil
	}
	if root.Kind != yaml.Map {
		return nil, fail(root.Pos, "want a mapping of settings to values")
	}

	for key, value := range root.Pairs {
		if !known[key.Text] {
			return nil, fail(key.Pos, "unknown setting %q", key.Text)
		}
		if _, twice := values[key.Text]; twice {
			return nil, fail(key.Pos, "%q is given twice", key.Text)
		}

		switch value.Kind {
		case yaml.Null, yaml.Map, yaml.List:
			return nil, fail(key.Pos, "%q needs a single value", key.Text)
		}

		if value.Text == "" && isSecret("--"+key.Text) { // see checkSecretsGiven
			return nil, fail(key.Pos, "%q must not be empty", key.Text)
		}

		values[key.Text] = configValue{value.Text, key.Pos.Line}
	}

	return values, nil
}
