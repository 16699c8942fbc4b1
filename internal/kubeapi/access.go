package kubeapi

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/internal/regular"
	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

// access is how an API server is reached, and as whom.
type access struct {
	server             string // URL
	ca                 []byte // PEM; nil: the system's
	serverName         string
	insecure           bool     // the server's certificate is not verified
	proxy              *url.URL // nil: that of the environment, if any
	token, tokenFile   string
	certificate, key   []byte // PEM
	certFile, certFKey string
}

// serviceAccount is where the kubelet mounts what a pod needs to reach the API server.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

const (
	maxKubeconfig = 1 << 20  // bytes
	maxCredential = 64 << 10 // bytes of a token, a certificate, a key
)

// inCluster is the access of a pod (k8s.io/client-go/rest: InClusterConfig).
func inCluster() (a access, err error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return a, errors.New("this process is not in a pod: KUBERNETES_SERVICE_HOST is not set; name a kubeconfig")
	}
	a.server, a.tokenFile = "https://"+net.JoinHostPort(host, port), serviceAccount+"/token"
	a.ca, err = regular.Read(serviceAccount+"/ca.crt", maxKubeconfig)
	return a, err
}

// fromKubeconfig reads the current context of a kubeconfig file. Paths in it are relative to it.
func fromKubeconfig(file string) (a access, err error) {
	data, err := regular.Read(file, maxKubeconfig)
	if err != nil {
		return a, err
	}
	d := &yamlfile.Decoder{File: file}
	root := d.Read(data, maxKubeconfig)
	if err := d.Err(); err != nil {
		return a, err
	}
	named := func(list, name, part string) (*yamlfile.Node, error) {
		if all := root.Get(list); all != nil {
			for _, item := range all.Items {
				if text(item.Get("name")) == name && item.Get(part) != nil {
					return item.Get(part), nil
				}
			}
		}
		return nil, fmt.Errorf("%s: no %s is named %q", file, part, name)
	}
	context, err := named("contexts", text(root.Get("current-context")), "context")
	if err != nil {
		return a, err
	}
	cluster, err := named("clusters", text(context.Get("cluster")), "cluster")
	if err != nil {
		return a, err
	}
	user, err := named("users", text(context.Get("user")), "user")
	if err != nil {
		return a, err
	}
	for _, key := range []string{"exec", "auth-provider", "username"} {
		if user.Get(key) != nil {
			return a, fmt.Errorf("%s: the user has the key %s, which tcpilot does not support: use a token, a tokenFile, or a client certificate", file, key)
		}
	}
	for _, key := range []string{"as", "as-uid", "as-groups", "as-user-extra"} {
		if user.Get(key) != nil { // without it, the server would answer to another user
			return a, fmt.Errorf("%s: the user has the key %s, which tcpilot does not support: use the credentials of the user to be impersonated", file, key)
		}
	}
	if a.proxy, err = proxyOf(text(cluster.Get("proxy-url"))); err != nil {
		return a, fmt.Errorf("%s: %w", file, err)
	}
	beside := func(n *yamlfile.Node) string {
		if path := text(n); path != "" && !filepath.IsAbs(path) {
			return filepath.Join(filepath.Dir(file), path)
		}
		return text(n)
	}
	a.server, a.serverName = text(cluster.Get("server")), text(cluster.Get("tls-server-name"))
	a.insecure = text(cluster.Get("insecure-skip-tls-verify")) == "true"
	a.token, a.tokenFile = text(user.Get("token")), beside(user.Get("tokenFile"))
	a.certFile, a.certFKey = beside(user.Get("client-certificate")), beside(user.Get("client-key"))
	if path := beside(cluster.Get("certificate-authority")); path != "" {
		if a.ca, err = regular.Read(path, maxKubeconfig); err != nil {
			return a, err
		}
	}
	for _, inline := range []struct {
		key  string
		from *yamlfile.Node
		to   *[]byte
	}{{"certificate-authority-data", cluster, &a.ca}, {"client-certificate-data", user, &a.certificate}, {"client-key-data", user, &a.key}} {
		if value := text(inline.from.Get(inline.key)); value != "" {
			if *inline.to, err = base64.StdEncoding.DecodeString(value); err != nil {
				return a, fmt.Errorf("%s: %s is not base64", file, inline.key)
			}
		}
	}
	return a, nil
}

// proxyOf reads the key proxy-url of a cluster; empty is none.
func proxyOf(text string) (*url.URL, error) {
	if text == "" {
		return nil, nil
	}
	proxy, err := url.Parse(text)
	if err != nil || proxy.Host == "" || !slices.Contains([]string{"http", "https", "socks5"}, proxy.Scheme) { // as client-go
		return nil, errors.New("the cluster's proxy-url is not the URL of a proxy: it must begin with http://, https:// or socks5://") // it may have a password
	}
	return proxy, nil
}

func text(n *yamlfile.Node) string {
	if n == nil {
		return ""
	}
	return strings.TrimSpace(n.Text)
}

const (
	dialTimeout   = 5 * time.Second
	answerTimeout = 30 * time.Second // until the headers of an answer
)

// client makes a client of the server. Credentials in files are read again for each connection or request,
// because they are replaced before they expire.
func (a *access) client() (*http.Client, *url.URL, error) {
	base, err := url.Parse(a.server)
	if err != nil || base.Host == "" || base.Scheme != "https" && base.Scheme != "http" {
		return nil, nil, fmt.Errorf("%q is not the URL of an API server", a.server)
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: a.serverName, InsecureSkipVerify: a.insecure}
	if a.ca != nil {
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(a.ca) {
			return nil, nil, errors.New("the certificate authority of the API server is not a PEM certificate")
		}
	}
	if a.certificate != nil || a.certFile != "" {
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			c, k := a.certificate, a.key
			var err1, err2 error
			if c == nil {
				c, err1 = regular.Read(a.certFile, maxCredential)
			}
			if k == nil {
				k, err2 = regular.Read(a.certFKey, maxCredential)
			}
			if err := errors.Join(err1, err2); err != nil {
				return nil, err
			}
			pair, err := tls.X509KeyPair(c, k)
			return &pair, err
		}
	}
	// A peer that is gone without closing the connection is detected after 10 + 3 * 5 s.
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}}
	proxy := http.ProxyFromEnvironment
	if a.proxy != nil {
		proxy = http.ProxyURL(a.proxy)
	}
	return &http.Client{Transport: &http.Transport{
		Proxy: proxy, DialContext: dialer.DialContext, TLSClientConfig: conf,
		TLSHandshakeTimeout: dialTimeout, ResponseHeaderTimeout: answerTimeout, MaxIdleConns: 2, IdleConnTimeout: time.Minute,
	}}, base, nil
}

// authorize adds the token to a request.
func (a *access) authorize(r *http.Request) error {
	token := a.token
	if a.tokenFile != "" {
		data, err := regular.Read(a.tokenFile, maxCredential)
		if err != nil {
			return fmt.Errorf("read token: %w", err)
		}
		token = strings.TrimSpace(string(data))
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return nil
}

// NodeName is the name of this node: the environment variable NODE_NAME, which a manifest sets, or what
// kubelets use without a cloud provider, the host's name.
func NodeName() (string, error) {
	if name := os.Getenv("NODE_NAME"); name != "" {
		return name, nil
	}
	name, err := os.Hostname()
	return strings.ToLower(name), err
}
