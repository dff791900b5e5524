package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"

	"github.com/rlnode/rlnode/api"
)

// tokenSettings are serve's settings for tokens.
type tokenSettings struct {
	TokensFile     string `type:"path" env:"RLNODE_TOKENS_FILE" placeholder:"FILE" help:"YAML file of tokens with names and scopes; rlnode token prints its lines. Read again when it changes."`
	AdminToken     string `env:"RLNODE_ADMIN_TOKEN" placeholder:"TOKEN" help:"Bearer token with all scopes. If any token is set, both planes require one, except for probes and metrics."`
	AdminTokenFile string `type:"path" env:"RLNODE_ADMIN_TOKEN_FILE" placeholder:"FILE" help:"The same, from a file."`
	APIToken       string `name:"api-token" env:"RLNODE_API_TOKEN" placeholder:"TOKEN" help:"Bearer token with the scopes check and adjust: for the data plane."`
	APITokenFile   string `name:"api-token-file" type:"path" env:"RLNODE_API_TOKEN_FILE" placeholder:"FILE" help:"The same, from a file."`

	AdminHost []string `sep:"," env:"RLNODE_ADMIN_HOST" placeholder:"NAME" help:"Host name that the admin plane answers to, besides addresses and localhost; repeat the flag or separate with commas. On loopback it answers to no other name, so that no page in a browser gets in."`
}

// complete reads the tokens from their files.
func (t *tokenSettings) complete() (errs []error) {
	if err := readToken("--admin-token", &t.AdminToken, t.AdminTokenFile); err != nil {
		errs = append(errs, err)
	}
	if err := readToken("--api-token", &t.APIToken, t.APITokenFile); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// warn logs which planes are open to other machines without a token.
func (t *tokenSettings) warn(log *slog.Logger, bind, adminBind string) {
	if t.TokensFile != "" || t.APIToken != "" || t.AdminToken != "" {
		return
	}

	open := func(text string) bool {
		ip, err := netip.ParseAddr(text)
		return err == nil && !ip.IsLoopback()
	}
	if open(bind) {
		log.Warn("anyone who reaches the data plane may use up and change limits: set --tokens-file", "bind", bind)
	}
	if open(adminBind) {
		log.Warn("anyone who reaches the admin plane may change the rules: set --tokens-file or --admin-token-file", "admin_bind", adminBind)
	}
}

// isSecret reports whether a flag of serve has a secret, or the file of one.
func isSecret(flag string) bool {
	switch strings.TrimSuffix(flag, "-file") {
	case "--api-token", "--admin-token", "--tokens", "--gossip-key", "--cluster-secret":
		return true
	}
	return false
}

// checkSecretsGiven returns an error for each secret that is empty on the
// command line, such as "$UNSET" in a script: the node would be open.
func checkSecretsGiven(args []string) error {
	var errs []error
	for i, arg := range args {
		flag, value, joined := strings.Cut(arg, "=")
		if !joined && i+1 < len(args) {
			value = args[i+1]
		}
		if value == "" && isSecret(flag) {
			errs = append(errs, fmt.Errorf("%s: it must not be empty", flag))
		}
	}
	return errors.Join(errs...)
}

// warnSecrets logs which secrets are on the command line.
func warnSecrets(log *slog.Logger, args []string) {
	var found []string
	for _, arg := range args {
		name, _, _ := strings.Cut(arg, "=")
		switch name {
		case "--api-token", "--admin-token", "--gossip-key":
			found = append(found, name)
		}
	}
	if len(found) > 0 {
		log.Warn("ps shows these secrets to everyone on this machine: use the environment or a file instead, such as "+found[0]+"-file", "flags", strings.Join(found, " "))
	}
}

const maxToken = 4096 // bytes of a token

// readToken reads the token from file, if one is given, and checks it. A token
// is one line of visible ASCII, because it has to fit in a header.
func readToken(flag string, token *string, file string) error {
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
			return fmt.Errorf("%s-file: %s has no token", flag, file)
		}
	}

	if len(*token) > maxToken || strings.ContainsFunc(*token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		*token = "" // so that node.Config does not report it, too
		return fmt.Errorf("%s: a token is at most %d visible ASCII characters without spaces", flag, maxToken)
	}

	return nil
}

// tokenCmd creates a token.
type tokenCmd struct {
	Name  string   `arg:"" help:"Name of the token's user, which appears in logs, traces and the list of versions."`
	Scope []string `required:"" sep:"," placeholder:"SCOPE" help:"What the token allows: check, adjust, read, entries, admin; repeat the flag or separate with commas."`

	Namespace []string `sep:"," placeholder:"NAME" help:"For the scopes check and adjust: allow limits that come with the call only in this namespace, or a pattern with *; repeat the flag or separate with commas."`
}

// Run prints the token and its line for the tokens file.
func (c *tokenCmd) Run(env *environment) error {
	scopes, err := api.ParseScopes(c.Scope)
	if err != nil {
		return usageError("--scope: %w", err)
	}
	text, line, err := api.NewToken(c.Name, scopes, c.Namespace...)
	if err != nil {
		return usageError("%w", err)
	}
	_, err = fmt.Fprintf(env.stdout, "%s\n%s\n", text, line)
	_, hint := fmt.Fprintf(env.stderr,
		"The first line is the token, which is shown only now. Add the second line below \"tokens:\" in the tokens file.\n")
	return errors.Join(err, hint)
}
