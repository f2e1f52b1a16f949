package e2e

// Proven here alone: a service works on real nodes that ask for passwords and certificates, and
// whoever has the wrong ones is told so, in a line without the password.

import (
	"encoding/base64"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestASecuredClusterTellsStrangersNothing serves on nodes with certificates and a
// password, also after the death of the leader. Who has the password wrong, or does not trust
// the certificates, is told so in one line, and nobody is told the password.
func TestASecuredClusterTellsStrangersNothing(t *testing.T) {
	c := startCluster(t, secured)
	s := c.serve(debugFlags...)
	s.key = s.newKey(unlimited...)
	before, err := createNamed(http.DefaultClient, s, "before")
	noError(t, err)
	leader := c.leader()
	c.kill(leader)
	eventually(t, 20*time.Second, func() error {
		_, err := createNamed(http.DefaultClient, s, "after")
		return err
	})
	if ids := s.everyAnimal(t)["before"]; len(ids) != 1 || ids[0] != before {
		t.Errorf("the pet %d is listed as %v", before, ids)
	}
	c.restart(leader)

	said := s.out.String() + s.log.String() + s.get(t, "/metrics") + s.get(t, "/readyz")
	if !strings.Contains(said, c.nodes[leader].address) {
		t.Errorf("the node in use is not named:\n%s", said)
	}
	nobody := filepath.Join(t.TempDir(), "nobody.pem")
	noError(t, os.WriteFile(nobody, nil, 0o600))
	serve := []string{"-addr", "127.0.0.1:0"}
	for _, stranger := range []struct {
		name, addresses, trusts string
		args                    []string
		told                    string
	}{
		{"wrong password", strings.ReplaceAll(s.db, "%40d", "%40e"), c.security.authority, serve,
			"401 Unauthorized"},
		{"no password", strings.ReplaceAll(s.db, rqliteUser+":"+rqlitePassword+"@", ""),
			c.security.authority,
			[]string{"key", "create"}, "401 Unauthorized"},
		{"no trust", s.db, nobody, serve, "certificate"},
		{"no encryption", strings.ReplaceAll(s.db, "https:", "http:"), c.security.authority,
			[]string{"key", "list"}, "HTTPS"},
	} {
		t.Run(stranger.name, func(t *testing.T) {
			cmd := program(append(stranger.args, "-db", stranger.addresses)...)
			cmd.Env = append(cmd.Env, "SSL_CERT_FILE="+stranger.trusts, "SSL_CERT_DIR="+t.TempDir())
			out, _ := cmd.CombinedOutput()
			text, status := string(out), cmd.ProcessState.ExitCode()
			said += text
			if status != 1 || strings.Count(text, "\n") != 1 ||
				!strings.Contains(text, stranger.told) {
				t.Errorf("petstore %s ends with %d and says %q, want 1 and one line with %q",
					stranger.args, status, text, stranger.told)
			}
		})
	}
	const password = "a/b:c@d" //nolint:gosec // of no other nodes
	basic := base64.StdEncoding.EncodeToString([]byte(rqliteUser + ":" + password))
	for _, secret := range []string{password, rqlitePassword, "a%2Fb", basic} {
		if at := strings.Index(said, secret); at >= 0 {
			t.Errorf("the password is told as %q: %s", secret, said[max(0, at-200):at+len(secret)])
		}
	}
}

// get reads a page of the debug address.
func (s *server) get(t *testing.T, target string) string {
	t.Helper()
	response, err := http.Get(s.debug + target)
	noError(t, err)
	got, err := readAnswer(response)
	noError(t, err)
	return got.body
}
