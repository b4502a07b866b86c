package notebooks

import (
	"fmt"
	"strings"

	"github.com/distribution/reference"
)

// ImageName is the full name of a container image that was given in full or as
// people write it: "jupyter/scipy" is docker.io/jupyter/scipy:latest.
func ImageName(image string) (string, error) {
	named, err := reference.ParseDockerRef(image)
	if err != nil {
		return "", fmt.Errorf("%q is no name of a container image, such as quay.io/jupyter/pytorch-notebook:cuda12: %w",
			image, err)
	}
	return named.String(), nil
}

// imageFailure says in plain words why the cluster cannot load an image. What
// the kubelet says is one long line of wrapped errors.
func imageFailure(image, reason, message string) string {
	name := "Its image"
	if image != "" {
		name = "Its image " + image
	}
	says := strings.ToLower(message)
	holds := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(says, p) {
				return true
			}
		}
		return false
	}
	switch {
	case reason == "InvalidImageName":
		return name + " cannot be loaded: that is no name of an image. Ask an administrator to correct the profile, or " +
			"choose another notebook."
	case reason == "ErrImageNeverPull":
		return name + " cannot be loaded: it is not on the machine. Ask an administrator to import it, or choose another " +
			"notebook."
	case holds("no space left", "disk quota"):
		return name + " cannot be loaded: the machine's disk is full. Ask an administrator to free some, or choose " +
			"another notebook."
	case holds("no such host", "server misbehaving", "connection refused", "network is unreachable", "no route to host",
		"i/o timeout", "tls handshake timeout", "deadline exceeded", "temporary failure in name resolution"):
		return name + " is not on the machine, and its registry cannot be reached. Try again later, ask an administrator " +
			"to import it, or choose another notebook."
	case holds("x509", "certificate"):
		return name + " is not on the machine, and its registry's certificate is not trusted. Ask an administrator to " +
			"import it, or choose another notebook."
	case holds("toomanyrequests", "too many requests"):
		return name + " is not on the machine, and its registry lets nobody load more for now. Try again later, or choose " +
			"another notebook."
	case holds("unauthorized", "authorization failed", "access denied", "forbidden"):
		return name + " is not on the machine, and its registry gives it to nobody who is not signed in; or there is no " +
			"image of this name. Ask an administrator to import it, or choose another notebook."
	case holds("no match for platform", "no matching manifest"):
		return name + " is not made for this kind of machine. Choose another notebook, or ask an administrator for " +
			"another image."
	case holds("not found", "manifest unknown", "name unknown"):
		return name + " is not on the machine, and its registry has none of this name. Ask an administrator to correct " +
			"the profile, or choose another notebook."
	}
	return name + " cannot be loaded: " + detail(message, reason)
}
