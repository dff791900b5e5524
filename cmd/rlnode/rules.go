package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// positionText returns file:line:column, as far as known.
func positionText(name string, line, column int) string {
	if line <= 0 {
		return shownName(name)
	}
	return fmt.Sprintf("%s:%d:%d", shownName(name), line, column)
}

// validateCmd checks rules files without a node.
type validateCmd struct {
	File string `arg:"" placeholder:"FILE|DIR" help:"The rules file, or a directory whose .yaml, .yml and .json files are one document; - is standard input."`
}

func (c *validateCmd) Run(env *environment) error {
	_, err := loadRules(env, c.File, document.Review, env.stdout, env.stderr)
	if err != nil {
		return err
	}
	fmt.Fprintf(env.stdout, "%s: valid\n", shownName(c.File))
	return nil
}

// loadRules reads a rules file, or the files of a directory as one document, and
// parses it by parse, document.Parse or document.Review. It writes the mistakes
// to out and the warnings to warn, one per line.
func loadRules(
	env *environment, name string, parse func([]byte) (*document.Document, error), out, warn io.Writer,
) (*document.Document, error) {
	files, err := filesIn(name)
	if err != nil {
		return nil, err
	}

	var src []byte
	joined := len(files) > 1
	if joined {
		src, err = joinFiles(env, files)
	} else {
		name = files[0]
		src, err = readFile(env, name, document.MaxDocument)
	}
	if mistakes, ok := errors.AsType[document.Errors](err); ok {
		printMistakes(out, name, "", mistakes)
		return nil, &exitError{code: exitFailed}
	}
	if err != nil {
		return nil, err
	}

	doc, err := parse(src)
	if mistakes, ok := errors.AsType[document.Errors](err); ok {
		printMistakes(out, name, "", placedIn(joined, mistakes))
		return nil, &exitError{code: exitFailed}
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", shownName(name), err)
	}

	printWarnings(warn, name, placedIn(joined, doc.Warnings()))
	return doc, nil
}

// joinFiles returns the text of the document that files make together. Their
// mistakes are [document.Errors].
func joinFiles(env *environment, files []string) ([]byte, error) {
	parts := make([]document.File, len(files))
	for i, file := range files {
		text, err := readFile(env, file, document.MaxDocument)
		if err != nil {
			return nil, err
		}
		parts[i] = document.File{Name: shownName(file), Text: text}
	}

	doc, err := document.Join(parts)
	if err != nil {
		return nil, err
	}

	text, err := doc.Text()
	return []byte(text), err
}

// placedIn returns mistakes without their positions if they are about joined
// files: the positions are those of a text that nobody has.
func placedIn(joined bool, list []document.Error) []document.Error {
	if joined {
		for i := range list {
			list[i].Line, list[i].Column = 0, 0
		}
	}
	return list
}

// withPath prefixes a message with the path in the document, unless the message starts with it.
func withPath(path, message string) string {
	if path == "" || strings.HasPrefix(message, path) {
		return message
	}
	return path + ": " + message
}

// printMistakes prints mistakes or warnings about a file, one per line.
func printMistakes(w io.Writer, name, kind string, list []document.Error) {
	for _, m := range list {
		at := name
		if m.File != "" {
			at = m.File
		}
		fmt.Fprintf(w, "%s: %s%s\n", positionText(at, m.Line, m.Column), kind, withPath(m.Path, m.Message))
	}
}

func printWarnings(w io.Writer, name string, list []document.Error) {
	printMistakes(w, name, "warning: ", list)
}

// printWritten returns a function that prints the answer to a write of rules;
// name is that of the rules in warnings.
func printWritten(env *environment, name string) func(io.Writer, *admin.Written) error {
	return func(out io.Writer, written *admin.Written) error {
		printWarnings(env.stderr, name, written.Warnings)
		for _, note := range written.Notes {
			fmt.Fprintf(env.stderr, "%s\n", oneLine(note))
		}
		_, err := fmt.Fprintf(out, "version %d is in force\n", written.Version)
		return err
	}
}

// explainRules prints the mistakes that a node found in a document, one per line.
func explainRules(env *environment, name string, err error) error {
	p, ok := errors.AsType[*problem](err)
	if !ok || len(p.Errors) == 0 {
		return err
	}
	printMistakes(env.stderr, name, "", p.Errors)
	return fmt.Errorf("the node refuses %s for %s; the rules in force are unchanged",
		shownName(name), countText(len(p.Errors), "mistake"))
}

// countText writes a number of things.
func countText(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// rulesCmd prints rules.
type rulesCmd struct {
	Version  *int64 `placeholder:"N" help:"Print an earlier version, one of the last 50."`
	Versions bool   `help:"List the last 50 versions."`
	JSON     bool   `help:"Print JSON."`
	adminPlane
}

func (c *rulesCmd) Run(env *environment) error {
	if c.Versions && c.Version != nil {
		return usageError("--version and --versions exclude each other")
	}
	if c.Version != nil && *c.Version < 1 {
		return usageError("--version: %d is below 1", *c.Version)
	}
	if c.Versions {
		return sendAndPrint(env, c.client, c.JSON, request{path: "/v1/rules/versions"}, printVersions)
	}

	n, err := c.client()
	if err != nil {
		return err
	}

	r := request{path: "/v1/rules", accept: "application/yaml"}
	if c.JSON {
		r.accept = "application/json"
	}
	if c.Version != nil {
		r.query = url.Values{"version": {strconv.FormatInt(*c.Version, 10)}}
	}

	reply, err := n.send(env.ctx, r)
	if err != nil {
		return err
	}

	reply.warnStale(env)

	_, err = fmt.Fprintf(env.stdout, "%s\n", bytes.TrimRight(reply.body, "\n"))
	return err
}

// versionsCmd lists the versions of the rules.
type versionsCmd struct{ answerFlags }

func (c *versionsCmd) Run(env *environment) error {
	return sendAndPrint(env, c.client, c.JSON, request{path: "/v1/rules/versions"}, printVersions)
}

func printVersions(w io.Writer, list *admin.Versions) error {
	return printTable(w, "VERSION\tWHEN\tBYTES\tBY\tWHAT\tMESSAGE", list.Versions, func(v rules.Version) string {
		message := ""
		if v.Message != "" {
			message = printable(v.Message)
		}
		size := "-" // a deletion has no text
		if v.Size > 0 {
			size = strconv.Itoa(v.Size)
		}
		return fmt.Sprintf("%d\t%s\t%s\t%s\t%s\t%s", v.Number, v.When.UTC().Format(time.RFC3339),
			size, printable(v.Writer()), printable(v.What), message)
	})
}
