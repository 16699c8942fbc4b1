package kubeapitest

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Admin is an administrator of a real API server, whose objects may be changed.
type Admin struct{ URL, Token string }

// FromEnvironment returns the administrator that TCPILOT_KUBEAPI names by URL and token; nil: none.
func FromEnvironment() *Admin {
	url, token, ok := strings.Cut(os.Getenv("TCPILOT_KUBEAPI"), " ")
	if !ok {
		return nil
	}
	return &Admin{url, token}
}

// Do sends a request, and returns what the server answers. kind is the type of the body.
func (a *Admin) Do(t testing.TB, method, path, kind, body string) (status int, answer string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, a.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+a.Token)
	r.Header.Set("Content-Type", kind)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	got, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	if err != nil {
		t.Fatal(err)
	}
	return got.StatusCode, string(text)
}

// Must is Do for what has to succeed.
func (a *Admin) Must(t testing.TB, method, path, kind, body string) string {
	t.Helper()
	status, answer := a.Do(t, method, path, kind, body)
	if status/100 != 2 {
		t.Fatalf("%s %s: %d: %s", method, path, status, answer)
	}
	return answer
}

// Kubeconfig writes a file for a server and a token.
func Kubeconfig(t testing.TB, url, token string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: %s}}]
`, url, token)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
