package main

import (
	"errors"
	"fmt"

	"github.com/rlnode/rlnode/rules/document"
)

// importCmd makes rules from other programs' configuration.
type importCmd struct {
	Envoy importEnvoyCmd `cmd:"" help:"Import the configuration of envoyproxy/ratelimit, the usual server behind Envoy's rate limit service."`
}

// importEnvoyCmd makes rules from the configuration of Envoy's rate limit service.
type importEnvoyCmd struct {
	Files        []string `arg:"" placeholder:"FILE" help:"Configuration files, each with a domain; - is standard input."`
	Output       string   `short:"o" default:"-" placeholder:"FILE" help:"File to write; - is standard output (default)."`
	MergeDomains bool     `help:"Merge the descriptors of files with the same domain, in the order of the files."`
}

// envoyDifferences lists the differences that hold for all files. Every import prints it.
const envoyDifferences = `Differences from the reference server that hold for every file:
- rlnode doesn't count refused hits, so only admitted hits use up a window. The reference server counts refused hits, too.
- rlnode charges a request's hits to all of its descriptors or to none. The reference server charges each by itself.
- Comments are not kept.
`

func (c *importEnvoyCmd) Run(env *environment) error {
	var domains []*document.EnvoySpec
	from := map[string]string{} // file by domain
	mistaken := false

	for _, name := range c.Files {
		src, err := readFile(env, name, document.MaxDocument)
		if err != nil {
			return err
		}

		domain, changed, err := document.ReadEnvoy(src)
		if mistakes, ok := errors.AsType[document.Errors](err); ok {
			printMistakes(env.stderr, name, "", mistakes)
			mistaken = true
			continue
		}

		printMistakes(env.stderr, name, "note: ", changed)
		first, taken := from[domain.Domain]
		switch {
		case !taken:
			from[domain.Domain] = name
			domains = append(domains, domain)
		case c.MergeDomains:
			for _, d := range domains {
				if d.Domain == domain.Domain {
					d.Merge(domain)
				}
			}
		default:
			fmt.Fprintf(env.stderr,
				"%s: the domain %q is also in %s; --merge-domains merges them\n", shownName(name),
				domain.Domain, shownName(first))
			mistaken = true
		}
	}

	if mistaken {
		return &exitError{code: exitFailed}
	}

	doc, err := document.EnvoyDocument(domains)
	if mistakes, ok := errors.AsType[document.Errors](err); ok {
		printMistakes(env.stderr, "the files together", "", mistakes)
		return &exitError{code: exitFailed}
	}

	text := doc.YAML()
	fmt.Fprint(env.stderr, envoyDifferences)

	if c.Output == "-" {
		_, err := env.stdout.Write(text)
		return err
	}
	if err := writeOutput(c.Output, text); err != nil {
		return fmt.Errorf("write the rules: %w", err)
	}

	_, err = fmt.Fprintf(env.stdout, "wrote %d domain(s) from %d file(s) to %s\n", len(domains), len(c.Files), c.Output)
	return err
}
