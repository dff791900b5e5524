package api

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rlnode/rlnode/internal/tick"
	"github.com/rlnode/rlnode/internal/yaml"
	"github.com/rlnode/rlnode/rules"
)

const (
	maxTokensFile = 4 << 20 // bytes
	// tokensInterval is how often the file is checked for changes.
	tokensInterval = 500 * time.Millisecond
	// tokenPrefix starts every token that rlnode generates, so that people and
	// secret scanners recognise it.
	tokenPrefix = "rlt_"
	// maxTokenNamespaces bounds the number of namespaces that a token is confined
	// to, and maxNamespace the bytes of each.
	maxTokenNamespaces = 100
	maxNamespace       = 1024
)

// NewToken generates a token, and the line that lists it in a tokens file. If
// namespaces are given, the token is confined to them.
func NewToken(name string, scopes Scope, namespaces ...string) (text, line string, err error) {
	if err := checkTokenName(name); err != nil {
		return "", "", fmt.Errorf("name: %w", err)
	}

	confined := ""
	if len(namespaces) > 0 {
		if err := checkNamespaces(namespaces, scopes); err != nil {
			return "", "", fmt.Errorf("namespaces: %w", err)
		}
		list, _ := json.Marshal(namespaces) // strings and numbers can't fail
		confined = ", namespaces: " + string(list)
	}

	var secret [32]byte
	_, _ = rand.Read(secret[:]) // it never fails
	text = tokenPrefix + base64.RawURLEncoding.EncodeToString(secret[:])
	sum := sha256.Sum256([]byte(text))
	line = fmt.Sprintf("- {name: %s, scopes: [%s]%s, sha256: %s}", name,
		strings.Join(scopes.Names(), ", "), confined, hex.EncodeToString(sum[:]))

	return text, line, nil
}

// CheckTokens validates the tokens file of a configuration, if it has one,
// together with the tokens of the settings.
func CheckTokens(config *Config) error {
	if config.TokensFile == "" {
		return nil
	}
	_, err := readTokens(config)
	return err
}

// readTokens returns the tokens of the tokens file and of the settings.
func readTokens(config *Config) (*tokenSet, error) {
	name := config.TokensFile
	src, err := readTokensFile(name)
	if err != nil {
		return nil, fmt.Errorf("read tokens: %w", err)
	}
	set := tokensFromSettings(config.APIToken, config.AdminToken)
	if at, err := set.parse(src); err != nil {
		return nil, fmt.Errorf("%s:%d:%d: %w", name, max(at.Line, 1), max(at.Column, 1), err)
	}
	return set, nil
}

func readTokensFile(name string) ([]byte, error) {
	// This comes before the file is opened: opening a named pipe would wait for
	// a writer.
	if info, err := os.Stat(name); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}

	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}

	defer f.Close()

	// One byte more than allowed tells a file that is too large from a full
	// one.
	src, err := io.ReadAll(io.LimitReader(f, maxTokensFile+1))
	if err == nil && len(src) > maxTokensFile {
		err = fmt.Errorf("%s is larger than %d bytes", name, maxTokensFile)
	}

	return src, err
}

// parse adds the tokens of a file. On an error it returns the position. Errors
// never quote the text where a hash should be: it may be a token.
func (set *tokenSet) parse(src []byte) (at yaml.Pos, err error) {
	root, err := yaml.Parse(string(src))
	if err != nil {
		if syntax, ok := errors.AsType[*yaml.SyntaxError](err); ok {
			return syntax.Pos, errors.New(syntax.Message)
		}
		return yaml.Pos{}, err
	}

	if root.Kind == yaml.Null {
		return root.Pos, errors.New("tokens is missing: the file is empty")
	}
	if root.Kind != yaml.Map {
		return root.Pos, fmt.Errorf("tokens is missing: a mapping is expected, not %v", root.Kind)
	}

	var list *yaml.Node
	for key, value := range root.Pairs {
		switch {
		case key.Text != "tokens":
			return key.Pos, fmt.Errorf("unknown field %q: the only field is tokens", Excerpt(key.Text))
		case list != nil:
			return key.Pos, errors.New("tokens is given twice")
		case value.Kind != yaml.List:
			return value.Pos, fmt.Errorf("tokens: a list is expected, not %v", value.Kind)
		}
		list = value
	}

	switch {
	case list == nil || len(list.Items) == 0:
		return root.Pos, errors.New("tokens: the list is empty")
	case len(list.Items) > maxTokens:
		return list.Items[maxTokens].Pos,
			fmt.Errorf("tokens: there are %d, and at most %d are allowed", len(list.Items),
				maxTokens)
	}

	names := make(map[string]bool, len(list.Items))
	for i, item := range list.Items {
		t, at, err := parseToken(item)
		if err == nil && names[t.Name] {
			err = fmt.Errorf("name: %s is given twice", t.Name)
		}

		if err == nil {
			if twin := set.add(t); twin != nil {
				err = fmt.Errorf("sha256: %s has the same token", twin.Name)
			}
		}

		if err != nil {
			return at, fmt.Errorf("tokens[%d].%w", i, err)
		}

		names[t.Name] = true
	}

	return yaml.Pos{}, nil
}

// parseToken reads one entry of the list.
func parseToken(item *yaml.Node) (t *Token, at yaml.Pos, err error) {
	if item.Kind != yaml.Map {
		return nil, item.Pos, fmt.Errorf("name: a mapping with name, scopes and sha256 is expected, not %v", item.Kind)
	}

	t = &Token{}
	given := map[string]bool{}
	var namespaces []string
	var namespacesPos yaml.Pos

	for key, value := range item.Pairs {
		if given[key.Text] {
			return nil, key.Pos, fmt.Errorf("%s is given twice", Excerpt(key.Text))
		}
		given[key.Text] = true

		switch key.Text {
		case "name":
			t.Name = value.Text
			err = checkTokenName(t.Name)
			if err == nil && (t.Name == apiTokenName || t.Name == adminTokenName) {
				err = fmt.Errorf("%s is the token of --%s", t.Name, t.Name)
			}
		case "scopes":
			t.Scopes, err = parseScopeList(value)
		case "namespaces":
			namespaces, err = parseStrings(value)
			namespacesPos = value.Pos
		case "sha256":
			// The text is cut first, because the decoder panics if its
			// destination is too short. Its true length is compared at the end.
			if n, bad := hex.Decode(t.hash[:],
				[]byte(value.Text[:min(len(value.Text), 2*len(t.hash))])); bad != nil ||
				n != len(t.hash) || len(value.Text) != 2*len(t.hash) {
				err = fmt.Errorf("%d hexadecimal digits are expected, the SHA-256 of the token", 2*len(t.hash))
			}
		default:
			return nil, key.Pos,
				fmt.Errorf("%s: there is no such field; the fields are name, scopes, namespaces and sha256",
					Excerpt(key.Text))
		}

		if err != nil {
			return nil, value.Pos, fmt.Errorf("%s: %w", key.Text, err)
		}
	}

	for _, field := range [...]string{"name", "scopes", "sha256"} {
		if !given[field] {
			return nil, item.Pos, fmt.Errorf("%s is missing", field)
		}
	}

	// This is checked only now: in the file, the scopes may come after the
	// namespaces.
	if given["namespaces"] {
		if err := checkNamespaces(namespaces, t.Scopes); err != nil {
			return nil, namespacesPos, fmt.Errorf("namespaces: %w", err)
		}
		t.Namespaces = rules.NewNamespaces(namespaces)
	}

	return t, item.Pos, nil
}

// checkNamespaces validates the namespaces that a token is confined to.
func checkNamespaces(list []string, scopes Scope) error {
	if len(list) == 0 || len(list) > maxTokenNamespaces {
		return fmt.Errorf("1 to %d are expected", maxTokenNamespaces)
	}

	for i, name := range list {
		if name == "" || len(name) > maxNamespace || !utf8.ValidString(name) ||
			strings.ContainsFunc(name, unicode.IsControl) {
			return fmt.Errorf("a namespace, or a pattern with *, has 1 to %d bytes of UTF-8 and no control characters", maxNamespace)
		}
		if slices.Contains(list[:i], name) {
			return fmt.Errorf("%q is given twice", Excerpt(name))
		}
	}

	if scopes.Allows(ScopeRead) {
		return errors.New("a token with the scope read or admin can't be confined to namespaces")
	}

	return nil
}

func parseScopeList(value *yaml.Node) (Scope, error) {
	names, err := parseStrings(value)
	if err != nil {
		return 0, fmt.Errorf("a list is expected, such as [check], not %v", value.Kind)
	}
	return ParseScopes(names)
}

func parseStrings(value *yaml.Node) ([]string, error) {
	if value.Kind != yaml.List {
		return nil, fmt.Errorf("a list is expected, not %v", value.Kind)
	}
	list := make([]string, len(value.Items))
	for i, item := range value.Items {
		list[i] = item.Text
	}
	return list, nil
}

// checkTokenName validates a token's name. The name appears in logs, answers
// and the list of versions.
func checkTokenName(name string) error {
	if name == "" || len(name) > maxTokenName {
		return fmt.Errorf("a name has 1 to %d bytes", maxTokenName)
	}
	if strings.HasPrefix(name, tokenPrefix) {
		return errors.New("this is a token, not a name")
	}

	for i, c := range []byte(name) {
		letter := 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9'
		if !letter && (i == 0 || strings.IndexByte("-_.@/", c) < 0) {
			return errors.New("a name consists of letters and digits and, after the first, also of - _ . @ /")
		}
	}

	return nil
}

// follow checks the file for changes until close.
func (ts *tokens) follow() {
	defer close(ts.done)
	for range tick.Every(ts.stop, tokensInterval) {
		ts.files.Check()
	}
}

// onReload puts a new set in force. If the file was invalid, the old tokens stay in force.
func (ts *tokens) onReload(set *tokenSet, err error) {
	if err != nil {
		ts.log.Error("tokens not reloaded, the old ones stay in force", "error", err)
		return
	}
	ts.putInForce(set)
	ts.log.Info("tokens reloaded", "file", ts.config.TokensFile, "tokens", len(set.byHash))
}

// close stops following the file. It waits for at most tokensInterval, because
// a hung disk may block the reader.
func (ts *tokens) close() {
	if ts.done == nil {
		return
	}
	close(ts.stop)
	select {
	case <-ts.done:
	case <-time.After(tokensInterval):
		ts.log.Warn("the tokens file is still being read", "file", ts.config.TokensFile)
	}
}
