// Package containerd tests tcpilot and its CNI plugin with a real container runtime, which is asked for pods over
// the CRI as the kubelet does: with the plugin chained behind another one, and as the main plugin, while
// containerd and the daemon are killed.
//
// In the tests TestKubelet, which tools/test-kubernetes runs, a kubelet asks for the pods that an API server has.
//
// tools/test-containerd runs all others. It makes the namespaces that the tests expect: they mount what they want, and
// their processes end with them.
//
// It refuses to depend on the code of containerd: it knows the messages that it sends and reads.
package containerd
