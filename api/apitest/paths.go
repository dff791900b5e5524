package apitest

import "strings"

// OddPaths returns paths that lead to secret if they are decoded, or cleaned,
// but are not written that way. open is another path, in whose place they might
// be allowed.
func OddPaths(open, secret string) []string {
	last := secret[strings.LastIndexByte(secret, '/')+1:]
	up := "../" + last
	return []string{
		open + "/" + up, open + "/%2e%2e/" + last, open + "/..%2f" + last,
		open + "/%2e%2e%2f" + last, open + "/%2E%2E/" + last,
		open + "/.%2e/" + last, open + "/../../v1/" + last, "/" + secret, secret + "/",
		secret + "/.", "/." + secret, "/x/.." + secret,
		"/%76" + secret[2:], strings.Replace(secret, "/v1/", "/v1%2f", 1), strings.Replace(secret, "/v1/", "/v1//", 1),
		strings.Replace(secret, "/v1/", "/v1/./", 1), secret + "%00", secret + ";x", secret + "#x",
		secret + "%3fx", strings.ToUpper(secret),
		strings.Replace(secret, "/v1/", `/v1\`, 1), "http://n/" + secret, "http://n" + open + "/" + up,
	}
}
