package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"

	"github.com/rlnode/rlnode/api"
)

// tokenSettings are serve's settings for access by token.
type tokenSettings struct {
	TokensFile     string `type:"path" env:"RLNODE_TOKENS_FILE" placeholder:"FILE" help:"YAML file of tokens with names and scopes; rlnode token makes its lines. Read again when it changes."`
	AdminToken     string `env:"RLNODE_ADMIN_TOKEN" placeholder:"TOKEN" help:"Bearer token for everything. As soon as there is any token, both planes ask for one, but for probes and metrics."`
	AdminTokenFile string `type:"path" env:"RLNODE_ADMIN_TOKEN_FILE" placeholder:"FILE" help:"The same, from a file."`
	APIToken       string `name:"api-token" env:"RLNODE_API_TOKEN" placeholder:"TOKEN" help:"Bearer token with the scopes check and adjust: for the data plane."`
	APITokenFile   string `name:"api-token-file" type:"path" env:"RLNODE_API_TOKEN_FILE" placeholder:"FILE" help:"The same, from a file."`

	AdminHost []string `sep:"," env:"RLNODE_ADMIN_HOST" placeholder:"NAME" help:"Host name that the admin plane answers to, besides addresses and localhost; repeat the flag or separate by commas. On loopback it answers to no other name, so that no page in a browser gets in."`
}

// complete reads the tokens from their files.
func (t *tokenSettings) complete() (errs []error) {
	if err := takeToken("--admin-token", &t.AdminToken, t.AdminTokenFile); err != nil {
		errs = append(errs, err)
	}
	if err := takeToken("--api-token", &t.APIToken, t.APITokenFile); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// warn logs which planes others can use without a token.
func (t *tokenSettings) warn(log *slog.Logger, bind, adminBind string) {
	if t.TokensFile != "" || t.APIToken != "" || t.AdminToken != "" {
		return
	}
	open := func(text string) bool {
		ip, err := netip.ParseAddr(text)
		return err == nil && !ip.IsLoopback()
	}
	if open(bind) {
		log.Warn("anyone who reaches the data plane may spend and change what is counted: set --tokens-file", "bind", bind)
	}
	if open(adminBind) {
		log.Warn("anyone who reaches the admin plane may change the rules: set --tokens-file or --admin-token-file", "admin_bind", adminBind)
	}
}

// warnSecrets logs which secrets are on the command line.
func warnSecrets(log *slog.Logger, args []string) {
	var found []string
	for _, arg := range args {
		switch name, _, _ := strings.Cut(arg, "="); name {
		case "--api-token", "--admin-token", "--gossip-key":
			found = append(found, name)
		}
	}
	if len(found) > 0 {
		log.Warn("ps shows these secrets to everyone on this machine: give them by environment or by a file, as "+found[0]+"-file", "flags", strings.Join(found, " "))
	}
}

// takeToken reads the token from file, if one is given, and checks it. A token is one line of visible ASCII, because it
// has to fit in a header.
func takeToken(flag string, token *string, file string) error {
	if file != "" {
		if *token != "" {
			return fmt.Errorf("%s and %s-file exclude each other", flag, flag)
		}
		text, err := readFile(&environment{}, file, maxToken)
		if err != nil {
			return fmt.Errorf("%s-file: %w", flag, err)
		}
		*token = strings.TrimSpace(string(text))
		if *token == "" {
			return fmt.Errorf("%s-file: %s holds no token", flag, file)
		}
	}
	if len(*token) > maxToken || strings.ContainsFunc(*token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("%s: a token is at most %d visible ASCII characters without spaces", flag, maxToken)
	}
	return nil
}

// tokenCmd creates a token.
type tokenCmd struct {
	Name  string   `arg:"" help:"Who is to use it: the name appears in logs, traces and the list of versions."`
	Scope []string `required:"" sep:"," placeholder:"SCOPE" help:"What it may be used for: check, adjust, read, admin; repeat the flag or separate by commas."`

	Namespace []string `sep:"," placeholder:"NAME" help:"The only namespace of limits that come with the call it may be used for, or a pattern with *; repeat the flag or separate by commas. For the scopes check and adjust."`
}

// Help implements kong.HelpProvider.
func (tokenCmd) Help() string {
	return `Prints two lines: the token, which is kept nowhere else, and the line for the file of --tokens-file, which has only the
token's hash. A running node reads the file again within a second or two; no node needs to be restarted.

  check   ask for decisions: check, batch, auth, reserve, settle; look at what was used
  adjust  change what was used: adjust, and resetting; report loads and feedback
  read    read the admin plane: rules, usage, members; what the dashboard shows
  admin   everything, writing rules and taking profiles included

Examples:

  rlnode token gateway --scope check
  rlnode token billing --scope read,adjust
  rlnode token checkout --scope check --namespace 'checkout/*'

A file of tokens, and the way to change one: add a second line, give its token out, then take the first line away.

  tokens:
  - {name: gateway, scopes: [check], sha256: 9f86…}
  - {name: grafana, scopes: [read], sha256: 60303…}

A token that exists already gets its line by printf %s "$TOKEN" | sha256sum.`
}

// Run prints the token and its line for the tokens file.
func (c *tokenCmd) Run(env *environment) error {
	scopes, err := api.ParseScopes(c.Scope)
	if err != nil {
		return errUsage("--scope: %w", err)
	}
	text, line, err := api.NewToken(c.Name, scopes, c.Namespace...)
	if err != nil {
		return errUsage("%w", err)
	}
	_, err = fmt.Fprintf(env.stdout, "%s\n%s\n", text, line)
	_, hint := fmt.Fprintf(env.stderr, "The first line is the token, and is shown only now. The second goes below \"tokens:\" into the file of --tokens-file.\n")
	return errors.Join(err, hint)
}
