package main

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// strayWord matches kong's error for a word that fits nowhere.
var strayWord = regexp.MustCompile(`^(unexpected argument|unknown flag) (\S+?)(,|$)`)

// typedPath returns a command's path as users type it: without the name of a default command.
func typedPath(command *kong.Node) string {
	if p := command.Parent; p != nil && p.DefaultCmd == command {
		return p.FullPath()
	}
	return command.FullPath()
}

// mayBeEmpty are the flags that change nothing but a remark, or what the node refuses anyhow.
var mayBeEmpty = []string{"message", "note", "token"}

// checkEmpty returns an error if a text on the command line is empty, as the
// shell makes it of a variable that is not set. Most commands would take it for
// one that was left out, and do something else: list instead of write, or show
// all subjects instead of those of a rule. Flags that are pointers are sent as
// they were typed, and the node refuses them. serve has its own checks.
func checkEmpty(command *kong.Context) error {
	if command.Selected().Name == "serve" {
		return nil
	}

	for _, p := range command.Path {
		var value *kong.Value
		name := ""
		switch {
		case p.Positional != nil:
			value, name = p.Positional, "<"+p.Positional.Name+">"
		case p.Flag != nil && !p.Resolved && !slices.Contains(mayBeEmpty, p.Flag.Name):
			value, name = p.Flag.Value, "--"+p.Flag.Name
		default:
			continue
		}

		if value.Target.Kind() == reflect.String && value.Target.String() == "" {
			return fmt.Errorf("%s is empty: is a variable of the shell not set?", name)
		}
	}

	return nil
}

// hintUsage suggests what the user probably meant by an invalid command line;
// empty without a guess.
func hintUsage(err error) string {
	parse, ok := errors.AsType[*kong.ParseError](err)
	if !ok || parse.Context.Selected() == nil {
		return ""
	}

	command := parse.Context.Selected()
	found := strayWord.FindStringSubmatch(err.Error())
	if found == nil {
		return ""
	}

	word := found[2]
	has := func(flag string) bool { return findFlag(command, flag) != nil }
	name := typedPath(command)
	switch {
	case found[1] == "unexpected argument" && has("--file"):
		return "; give the file with -f: " + name + " -f " + word
	case found[1] == "unexpected argument" && has("--key") && has("--rule"):
		return "; give the subject with --key: " + name + " --rule RULE --key " + word
	case (word == "-f" || word == "--file") && len(command.Positional) > 0:
		return "; the file needs no flag: " + name + " " + strings.ToUpper(command.Positional[0].Name)
	case word == "--addr" && has("--admin"):
		return "; " + name + " asks the admin plane: set --admin"
	case word == "--admin" && has("--addr"):
		return "; " + name + " asks the data plane: set --addr"
	}

	return ""
}
