package signin

import (
	"fmt"

	"github.com/gpulab/gpulab/internal/users"
)

// Vouched is somebody whom something else than a provider vouches for: the tailnet, for a connection that came over it.
type Vouched struct {
	Realm, Subject string // see users.Outside
	Username, Name string
	Groups         []string
}

// Way is such a way to sign in, with its rules, which apply as those of providers do.
type Way struct{ settings settings }

// NewWay checks the rules. Of the configuration it takes Name, Title, Help, Accounts, Rules and NoMatch.
func NewWay(c Config) (Way, error) {
	if c.Accounts != "" && c.Accounts != accountsCreate && c.Accounts != accountsExisting {
		_, text := c.checkAdmission()
		return Way{}, &ConfigError{Key: "accounts", Text: text}
	}
	for i := range c.Rules {
		if text := c.Rules[i].check(); text != "" {
			return Way{}, &ConfigError{Key: "rules", Text: fmt.Sprintf("entry %d %s", i+1, text)}
		}
	}
	return Way{c.complete()}, nil
}

// Judge is what the rules make of somebody.
func (w Way) Judge(v Vouched) users.Outside {
	w.settings.realm = v.Realm
	return w.settings.judge(who{subject: v.Subject, username: v.Username, name: v.Name, groups: v.Groups})
}
