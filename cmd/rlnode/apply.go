package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// permissionFlags say what a change of the rules may do without a question.
type permissionFlags struct {
	Remove []string `placeholder:"NAME,…" help:"Permit that these rules are removed although they are in use; repeat for more."`
	Force  bool     `help:"Permit everything that would otherwise be asked."`
	DryRun bool     `help:"Print what would change, and change nothing."`
}

// applyCmd writes rules files to a node.
type applyCmd struct {
	File    []string `short:"f" sep:"none" placeholder:"FILE|DIR" help:"A rules file, or a directory whose .yaml, .yml and .json files are one document; repeat for more. - is standard input."`
	More    []string `arg:"" optional:"" name:"file" help:"More files, as when the shell expands -f *.yaml."`
	Message string   `short:"m" placeholder:"TEXT" help:"Why, for the list of versions."`
	IfMatch *int64   `placeholder:"VERSION" help:"Only if this version is in force."`
	permissionFlags
	answerFlags
}

func (c *applyCmd) Run(env *environment) error {
	switch {
	case len(c.File) == 0 && len(c.More) > 0:
		return usageError("give the file with -f: rlnode apply -f %s", strings.Join(c.More, " "))
	case len(c.File) == 0:
		return usageError("--file is missing: rlnode apply -f rules.yaml")
	case c.IfMatch != nil && *c.IfMatch < 1:
		return usageError("--if-match: %d is not a version: they begin with 1", *c.IfMatch)
	}

	n, err := c.client()
	if err != nil {
		return err
	}

	name, source, err := readDocument(env, append(slices.Clone(c.File), c.More...))
	if err != nil {
		return err
	}

	return applyChange(env, n, &change{
		name: name, source: source, message: c.Message, ifMatch: c.IfMatch,
		permissionFlags: c.permissionFlags, json: c.JSON,
		stdinUsed: slices.Contains(c.File, "-") || slices.Contains(c.More, "-"),
	})
}

// rollbackCmd puts an earlier version in force again.
type rollbackCmd struct {
	Version int64  `arg:"" help:"The version, one of those that rlnode versions lists."`
	Message string `short:"m" placeholder:"TEXT" help:"Why, for the list of versions."`
	permissionFlags
	answerFlags
}

func (c *rollbackCmd) Run(env *environment) error {
	if c.Version < 1 {
		return usageError("%d is not a version: they begin with 1", c.Version)
	}

	n, err := c.client()
	if err != nil {
		return err
	}

	message := c.Message
	if message == "" {
		message = fmt.Sprintf("back to version %d", c.Version)
	}

	return applyChange(env, n, &change{
		name: fmt.Sprintf("version %d", c.Version), version: c.Version, message: message,
		permissionFlags: c.permissionFlags, json: c.JSON,
	})
}

// diffCmd shows what changes.
type diffCmd struct {
	What []string `arg:"" placeholder:"FILE|N" help:"A rules file or a directory, to compare with the rules in force; or two versions."`
	answerFlags
}

func (c *diffCmd) Run(env *environment) error {
	n, err := c.client()
	if err != nil {
		return err
	}

	ask := request{}
	name := ""
	from, errFrom := strconv.ParseInt(c.What[0], 10, 64)
	switch {
	case len(c.What) == 2 && errFrom == nil:
		to, err := strconv.ParseInt(c.What[1], 10, 64)
		if err != nil || from < 1 || to < 1 {
			return usageError("%s %s: want two versions, such as 12 14", c.What[0], c.What[1])
		}
		name = fmt.Sprintf("version %d", to)
		ask.query = url.Values{"from": {c.What[0]}, "to": {c.What[1]}}
	case len(c.What) == 1 && errFrom == nil && !fileExists(c.What[0]):
		return usageError("%s: want a file, or two versions, such as 12 14", c.What[0])
	default:
		name, ask.body, err = readDocument(env, c.What)
		if err != nil {
			return err
		}
	}

	d, reply, err := askDiff(env, n, name, ask)
	if err != nil {
		return err
	}

	if c.JSON {
		fmt.Fprintf(env.stdout, "%s\n", strings.TrimSpace(string(reply.body)))
	} else {
		printDifference(env.stdout, name, d)
	}

	if d.Changed {
		return &exitError{code: exitChange}
	}

	return nil
}

func fileExists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// change is a whole document that a command is about to put in force.
type change struct {
	name    string // for messages
	source  []byte
	version int64 // instead of source: the version to put in force again
	message string
	ifMatch *int64 // the version that must be in force; nil: any
	permissionFlags
	json      bool
	stdinUsed bool // so nobody can be asked there
}

// applyChange prints what changes, asks if it must, and puts the change in force.
func applyChange(env *environment, n *remote, ch *change) error {
	ask := request{body: ch.source}
	if ch.version != 0 {
		ask.query = url.Values{"to": {strconv.FormatInt(ch.version, 10)}}
	}

	d, reply, err := askDiff(env, n, ch.name, ask)
	if err != nil {
		return err
	}

	if ch.ifMatch != nil && *ch.ifMatch != d.From {
		return fmt.Errorf("--if-match: version %d is in force, not %d; nothing was changed", d.From, *ch.ifMatch)
	}

	out := env.stdout
	if ch.json {
		out = env.stderr // standard output has the node's answer alone
	}

	printDifference(out, ch.name, d)

	if !d.Changed || ch.DryRun {
		printWarnings(env.stderr, ch.name, d.Warnings)
		if ch.json {
			fmt.Fprintf(env.stdout, "%s\n", strings.TrimSpace(string(reply.body)))
		}
		if d.Changed {
			return &exitError{code: exitChange}
		}
		return nil
	}

	if err := ch.permit(env, d); err != nil {
		return err
	}

	return ch.write(env, n, d)
}

// askDiff asks a node what a change would do.
func askDiff(env *environment, n *remote, name string, r request) (*admin.Difference, *reply, error) {
	r.method = http.MethodPost
	r.path = "/v1/rules/diff"
	r.contentType = "application/yaml"
	reply, err := n.send(env.ctx, r)
	if err != nil {
		return nil, nil, explainRules(env, name, err)
	}
	reply.warnStale(env)
	d := &admin.Difference{}
	return d, reply, reply.decode(d)
}

// permit returns nil if the change may be made: nothing in use vanishes, the
// flags permit it, or a person on the terminal does.
func (ch *change) permit(env *environment, d *admin.Difference) error {
	reasons := ch.reasons(d)
	if len(reasons) == 0 || ch.Force {
		return nil
	}

	if !env.terminal || ch.stdinUsed {
		for _, r := range reasons {
			fmt.Fprintf(env.stderr, "%s\n", r.text)
		}
		return &exitError{code: exitPermission,
			err: fmt.Errorf("nothing was changed: permit it with %s", howToPermit(reasons))}
	}

	for _, r := range reasons {
		fmt.Fprintf(env.stdout, "%s\n", r.text)
	}

	fmt.Fprint(env.stdout, "Go on? [y/N] ")
	line, err := bufio.NewReader(env.stdin).ReadString('\n')
	if err != nil && line == "" {
		fmt.Fprintln(env.stdout)
	}

	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}

	return &exitError{code: exitPermission, err: errors.New("nothing was changed")}
}

// reason is why a change needs permission.
type reason struct {
	text   string
	remove string // the rule that --remove would name; empty if only --force permits it
}

// reasons returns why the change needs permission that the flags don't give.
func (ch *change) reasons(d *admin.Difference) (out []reason) {
	removed := map[string]bool{}
	for i := range d.Changes {
		piece := &d.Changes[i]
		if piece.Change != document.Removed {
			continue
		}

		removed[piece.Name] = true
		if !piece.InUse || slices.Contains(ch.Remove, piece.Name) {
			continue
		}

		text := fmt.Sprintf("%s would vanish; it may be in use", printable(piece.String()))
		if piece.Checks > 0 {
			text = fmt.Sprintf("%s would vanish; %d checks used it in the last hour",
				printable(piece.String()), piece.Checks)
		}
		out = append(out, reason{text, piece.Name})
	}

	// What somebody wrote since the last apply would be lost, unless --remove
	// names it.
	lost := slices.DeleteFunc(slices.Clone(d.OutsidePieces), func(p document.PieceChange) bool {
		return removed[p.Name] && slices.Contains(ch.Remove, p.Name)
	})
	if len(d.Outside) == 0 || len(d.OutsidePieces) > 0 && len(lost) == 0 {
		return out
	}

	for i := range d.Outside {
		v := &d.Outside[i]
		out = append(out,
			reason{text: fmt.Sprintf("version %d by %s (%s) is not in %s", v.Number,
				printable(v.Writer()), printable(v.What), ch.name)})
	}
	return out
}

// howToPermit names the flags that permit a change.
func howToPermit(reasons []reason) string {
	var flags []string
	for _, r := range reasons {
		if r.remove == "" {
			return "--force; or write what is in force into your file first (rlnode rules)"
		}
		flags = append(flags, "--remove "+printable(r.remove))
	}
	return strings.Join(flags, " ") + ", or with --force"
}

// write puts the change in force if the version that it was compared with is
// still in force.
func (ch *change) write(env *environment, n *remote, d *admin.Difference) error {
	r := request{method: http.MethodPut, path: "/v1/rules", contentType: "application/yaml",
		body: ch.source, query: url.Values{}}
	if ch.version != 0 {
		r.query.Set("version", strconv.FormatInt(ch.version, 10))
	} else {
		r.query.Set("via", rules.ViaApply)
	}

	if ch.message != "" {
		r.query.Set("message", ch.message)
	}

	if d.From != 0 {
		r.ifMatch = strconv.Quote(strconv.FormatInt(d.From, 10))
	}

	reply, err := n.send(env.ctx, r)
	if p, ok := errors.AsType[*problem](err); ok && p.Status == http.StatusPreconditionFailed {
		p.hint = "; somebody has written rules in the meantime: run the command again to see what changes now"
	}

	if err != nil {
		return explainRules(env, ch.name, err)
	}

	return printReply(env, ch.json, reply, printWritten(env, ch.name))
}

// maxNamed bounds the changes that are printed. JSON has all of them.
const maxNamed = 200

// printDifference prints what changes, a line for each piece, and then what that means.
func printDifference(w io.Writer, name string, d *admin.Difference) {
	if !d.Changed {
		fmt.Fprintf(w, "no change: %s has what is in version %d\n", name, d.From)
		return
	}

	p := colours(w)
	fmt.Fprintf(w, "from version %d to %s:\n", d.From, name)

	for i := range d.Changes[:min(len(d.Changes), maxNamed)] {
		c := &d.Changes[i]
		mark := map[string]string{document.Added: p.paint(green, "+"),
			document.Removed: p.paint(red, "-"), document.Changed: p.paint(yellow, "~")}[c.Change]
		fmt.Fprintf(w, "%s %s", mark, printable(c.String()))

		for j, detail := range c.Details {
			separator := "; "
			if j == 0 {
				separator = "  "
			}
			fmt.Fprint(w, separator, oneLine(detail))
		}

		fmt.Fprintln(w)
	}

	if more := len(d.Changes) + d.LeftOut - maxNamed; more > 0 {
		fmt.Fprintf(w, "and %d more\n", more)
	}

	for _, sentence := range d.Summary {
		fmt.Fprintf(w, "%s\n", oneLine(sentence))
	}
}

// readDocument reads files and directories as one document, and returns its
// text and a name for messages. A single file is read as it is: the node says
// what is wrong with it.
func readDocument(env *environment, names []string) (name string, source []byte, err error) {
	var files []string
	for _, operand := range names {
		found, err := filesIn(operand)
		if err != nil {
			return "", nil, err
		}
		files = append(files, found...)
	}

	if len(files) == 1 {
		name = shownName(files[0])
		source, err = readFile(env, files[0], document.MaxDocument)
		if err == nil && len(bytes.TrimSpace(source)) == 0 {
			err = fmt.Errorf("%s is empty: it needs a rules document, which begins with version: 1", name)
		}
		return name, source, err
	}

	name = strings.Join(names, " ")
	source, err = joinFiles(env, files)
	if mistakes, ok := errors.AsType[document.Errors](err); ok {
		printMistakes(env.stderr, name, "", mistakes)
		return "", nil, fmt.Errorf("the files have %s; the rules in force are unchanged",
			countText(len(mistakes), "mistake"))
	}
	return name, source, err
}

// filesIn returns the rules files directly in a directory, sorted; anything
// else is a file itself. Names that begin with a dot are left out: Kubernetes
// mounts a ConfigMap with links to hidden directories.
func filesIn(name string) ([]string, error) {
	info, err := os.Stat(name)
	if name == "-" || err != nil || !info.IsDir() {
		return []string{name}, nil // reading it reports the error
	}

	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, err
	}

	var files []string
	for _, e := range entries {
		file := filepath.Join(name, e.Name())
		ext := filepath.Ext(e.Name())
		if strings.HasPrefix(e.Name(), ".") || ext != ".yaml" && ext != ".yml" && ext != ".json" {
			continue
		}
		if info, err := os.Stat(file); err != nil || !info.IsDir() { // an error is reported by reading
			files = append(files, file)
		}
	}

	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no .yaml, .yml or .json file; the rules in force are unchanged", name)
	}

	return files, nil
}
