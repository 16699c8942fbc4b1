// Package kubeapi follows the metadata of a node's pods at the API server of Kubernetes, and writes events about
// them (design note 27 says why it does not use client-go). For routes between nodes it also follows the nodes: their networks of
// pods, and their addresses.
//
// It refuses to change any object, and to read more of a pod than its metadata.
package kubeapi
