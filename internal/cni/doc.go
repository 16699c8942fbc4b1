// Package cni is the plugin tcpilot-cni: the commands of the Container Network Interface
// (CNI 0.3.0 to 1.1.0), for a plugin that is chained behind another one, or that is the main plugin and
// makes the pod's interface. It records each pod in the directory of package podrecord and makes the
// daemon read it. The section numbers in comments are those of the specification, version 1.1.0.
//
// Of the CNI library it uses the packages that execute other plugins and that convert results between
// versions. It does not use the package skel, which requires CNI_PATH for commands for which the
// specification calls it optional, can print an error after a result, and waits for its input without a
// limit. It does not decode prevResult to pass it on, so that unknown keys pass through as well.
//
// It refuses to fail because the daemon is down or slow.
package cni
