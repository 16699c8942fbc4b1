// Package kubeapitest is an API server of Kubernetes for tests: pods and nodes, their changes, and events. It answers the
// requests that package kubeapi makes as the real one does (checked against kube-apiserver 1.36).
//
// It refuses all other requests.
package kubeapitest
