package signin

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-ldap/ldap/v3"

	"github.com/gpulab/gpulab/internal/users"
)

// directory is an LDAP server: people type name and password into the lab's own form.
type directory struct {
	settings
	log     *slog.Logger
	contact *contact

	mu     sync.Mutex
	failed time.Time // when it did not answer, the last time
}

// directoryTime is how long a directory has for a whole sign-in: somebody with a password of the lab's own waits for
// it when they mistype that.
const directoryTime = 5 * time.Second

// idAttributes never belong to somebody else, in the order in which they are looked for: of OpenLDAP, Active Directory,
// FreeIPA and 389.
var idAttributes = []string{"entryUUID", "objectGUID", "ipaUniqueID", "nsUniqueId"}

// errNobody says that a name and password do not fit.
var errNobody = errors.New("no such name and password")

// Title implements users.Directory.
func (d *directory) Title() string { return d.settings.Title }

// SignIn implements users.Directory.
func (d *directory) SignIn(ctx context.Context, name, password string) (*users.Outside, error) {
	// A server that ends texts at a NUL would take such a password for an empty one, and a bind without a password
	// proves nothing.
	if !plausible(name) || password == "" || strings.ContainsRune(password, 0) {
		return nil, nil
	}
	d.mu.Lock()
	quiet := time.Since(d.failed) < quietAfterFailure
	d.mu.Unlock()
	if quiet {
		return nil, errors.New("it did not answer a moment ago")
	}
	ctx, cancel := context.WithTimeout(ctx, directoryTime)
	defer cancel()
	w, err := d.check(ctx, name, password)
	if errors.Is(err, errNobody) {
		d.contact.note(ctx, nil)
		return nil, nil
	}
	d.contact.note(ctx, err)
	if err != nil {
		d.log.Warn("a directory cannot be used; `gpulab signin check` says more", "provider", d.Name, "err", err)
		if !errors.Is(context.Cause(ctx), context.Canceled) {
			d.mu.Lock()
			d.failed = time.Now()
			d.mu.Unlock()
		}
		return nil, err
	}
	o := d.judge(w)
	return &o, nil
}

// plausible refuses names that nobody has in a directory, before anything is asked.
func plausible(name string) bool {
	return name != "" && utf8.ValidString(name) && utf8.RuneCountInString(name) <= 200 &&
		!strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}

// check finds who has that name and proves the password by binding with it. Somebody who is not there costs the same
// steps: a bind that cannot succeed.
func (d *directory) check(ctx context.Context, name, password string) (who, error) {
	conn, err := d.open(ctx)
	if err != nil {
		return who{}, err
	}
	defer func() { _ = conn.Close() }()
	entry, err := d.find(conn, name)
	if err != nil && !errors.Is(err, errNobody) {
		return who{}, err
	}
	dn := "cn=" + rand.Text() + "," + d.UserBase
	if entry != nil {
		dn = entry.DN
	}
	if dn == "" {
		return who{}, errNobody // a bind without a name is nobody's, whatever the password
	}
	switch bindErr := conn.Bind(dn, password); {
	case entry == nil:
		return who{}, errNobody
	case refusedPassword(bindErr):
		return who{}, errNobody
	case bindErr != nil:
		return who{}, fmt.Errorf("bind as the person: %w", bindErr)
	}
	if err := d.bind(conn); err != nil {
		return who{}, err
	}
	return d.describe(conn, name, entry)
}

// refusedPassword tells whether a bind failed because of who it was, rather than of the server. Accounts that are
// locked or expired count too: their state is nobody's business who has not signed in.
func refusedPassword(err error) bool {
	for _, code := range []uint16{ldap.LDAPResultInvalidCredentials, ldap.LDAPResultNoSuchObject,
		ldap.LDAPResultInvalidDNSyntax,
		ldap.LDAPResultInappropriateAuthentication, ldap.LDAPResultUnwillingToPerform,
		ldap.LDAPResultInsufficientAccessRights,
		ldap.LDAPResultConstraintViolation, ldap.ErrorEmptyPassword} {
		if ldap.IsErrorWithCode(err, code) {
			return true
		}
	}
	return false
}

// open connects, encrypts and binds as the service.
func (d *directory) open(ctx context.Context) (*ldap.Conn, error) {
	conn, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	if err := d.bind(conn); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// connect returns a connection that is encrypted, and ends when ctx does.
func (d *directory) connect(ctx context.Context) (*ldap.Conn, error) {
	pool, err := roots(d.CAFile)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(d.URL)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, ServerName: u.Hostname()}
	dialer := &net.Dialer{Timeout: directoryTime}
	if deadline, ok := ctx.Deadline(); ok {
		dialer.Deadline = deadline
	}
	port := "389"
	if u.Scheme == "ldaps" {
		port = "636"
	}
	wire, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), orText(u.Port(), port)))
	if err == nil && u.Scheme == "ldaps" {
		over := tls.Client(wire, config)
		if err = over.HandshakeContext(ctx); err != nil {
			_ = wire.Close()
		}
		wire = over
	}
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", d.URL, err)
	}
	conn := ldap.NewConn(&brief{Conn: wire, left: maxDirectoryAnswers}, u.Scheme == "ldaps")
	conn.Start()
	conn.SetTimeout(directoryTime)
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	if d.StartTLS {
		if err := conn.StartTLS(config); err != nil {
			_ = conn.Close()
			return nil, fmt.Errorf("encrypt the connection to %s: %w", d.URL, err)
		}
	}
	return conn, nil
}

// brief is a connection on which only so much comes. The library keeps all of an answer, however long, in memory.
type brief struct {
	net.Conn
	left int // bytes
}

// Read implements io.Reader.
func (b *brief) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLong
	}
	n, err := b.Conn.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// maxDirectoryAnswers is how much a directory may send in one sign-in, in bytes: 5000 groups take a tenth of it.
const maxDirectoryAnswers = 16 << 20

var errTooLong = errors.New("the directory sends more than it is asked for")

func (d *directory) bind(conn *ldap.Conn) error {
	if d.BindDN == "" {
		if err := conn.UnauthenticatedBind(""); err != nil {
			return fmt.Errorf("search without a name: %w", err)
		}
		return nil
	}
	password, err := secret(d.BindPasswordFile)
	if err != nil {
		return err
	}
	if err := conn.Bind(d.BindDN, password); err != nil {
		return fmt.Errorf("bind as %s: %w", d.BindDN, err)
	}
	return nil
}

// find looks somebody up by the name that they typed; errNobody where it fits nobody, or more than one. What the
// server refers to elsewhere is not followed: the password would go to whoever that names.
func (d *directory) find(conn *ldap.Conn, name string) (*ldap.Entry, error) {
	filter := fillFilter(d.UserFilter, name, "")
	found, err := conn.Search(ldap.NewSearchRequest(d.UserBase, ldap.ScopeWholeSubtree, ldap.NeverDerefAliases, 2,
		seconds(directoryTime), false,
		filter, d.attributes(), nil))
	if ldap.IsErrorWithCode(err, ldap.LDAPResultSizeLimitExceeded) {
		d.log.Warn("a name in a directory fits more than one person, so nobody can sign in with it", "provider", d.Name)
		return nil, errNobody
	}
	if err != nil {
		return nil, fmt.Errorf("search people below %s: %w", d.UserBase, err)
	}
	if len(found.Entries) != 1 {
		return nil, errNobody
	}
	return found.Entries[0], nil
}

func seconds(d time.Duration) int { return int(d / time.Second) }

// attributes are all that is read of a person.
func (d *directory) attributes() []string {
	list := append([]string{d.Claims.Username, d.Claims.Name, d.Claims.Email, d.Claims.Groups,
		"objectClass", "gidNumber", "primaryGroupID", "objectSid"}, idAttributes...)
	if d.Claims.ID != "" {
		list = append(list, d.Claims.ID)
	}
	for _, r := range d.Rules {
		if r.Claim != "" {
			list = append(list, r.Claim)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// describe reads who somebody is, with their groups.
func (d *directory) describe(conn *ldap.Conn, name string, entry *ldap.Entry) (who, error) {
	w := who{
		name: first(entry, d.Claims.Name), email: first(entry, d.Claims.Email), username: first(entry, d.Claims.Username),
		fold: true, claims: map[string]any{},
	}
	w.verified = w.email != "" // who keeps the directory vouches for what is in it
	if w.email == "" {
		w.emailGap = gap{why: "the entry has no " + d.Claims.Email, none: true}
	}
	if w.subject = subject(entry, d.ids()); w.subject == "" {
		return who{}, fmt.Errorf("the entry %s has none of %s, by which people are known for good; claims.id names "+
			"another attribute", entry.DN, orList(d.ids()))
	}
	for _, attribute := range entry.Attributes {
		values := make([]any, 0, len(attribute.Values))
		for _, v := range attribute.Values {
			values = append(values, v)
		}
		w.claims[attribute.Name] = values
		for _, r := range d.Rules { // names of attributes are the same in capitals and small letters
			if strings.EqualFold(r.Claim, attribute.Name) {
				w.claims[r.Claim] = values
			}
		}
	}
	// If the directory sends another of these attributes one day, it still means the same person.
	for _, id := range idAttributes {
		if other := subject(entry, []string{id}); other != "" && other != w.subject {
			w.also = append(w.also, other)
		}
	}
	err := d.addGroups(conn, name, entry, &w)
	return w, err
}

// addGroups reads a person's groups: from their entry, by searching, and the primary group that their entry names. If
// the directory leaves out groups, w says so. An error means that the directory does not answer.
func (d *directory) addGroups(conn *ldap.Conn, name string, entry *ldap.Entry, w *who) error {
	told, whole := listed(entry, d.Claims.Groups)
	for _, dn := range told {
		w.groups = append(w.groups, groupNames(dn)...)
	}
	if !d.looksAtGroups() {
		return nil
	}
	for _, search := range d.groupSearches(orText(w.username, name), entry) {
		found, err := conn.SearchWithPaging(ldap.NewSearchRequest(search.base, ldap.ScopeWholeSubtree, ldap.NeverDerefAliases,
			maxValues,
			seconds(directoryTime), false, search.filter, []string{"cn"}, nil), groupPage)
		if found != nil {
			for _, group := range found.Entries {
				w.groups = append(w.groups, group.DN)
				for _, name := range values(group, "cn") {
					w.groups = append(w.groups, plainNames(name)...)
				}
			}
		}
		switch {
		case err != nil && !refusesGroups(err):
			return fmt.Errorf("search groups below %s: %w", search.base, err)
		case err != nil && !w.groupsGap.is():
			w.groupsGap = d.groupsGap(false, "the search below %s ended with “%s”", search.base, resultOf(err))
		case search.base == d.GroupBase && err == nil && len(found.Entries) == 0 && len(found.Referrals) > 0 &&
			!w.groupsGap.is():
			w.groupsGap = d.groupsGap(true, "for %s, the directory only refers to %s", search.base,
				printable(found.Referrals[0]))
		}
	}
	switch {
	case w.groupsGap.is() || d.GroupBase != "":
	case !whole:
		w.groupsGap = d.groupsGap(false, "the directory sent only some values of %s", d.Claims.Groups)
	case len(told) == 0:
		sends, err := d.sendsGroups(conn)
		if err != nil {
			return err
		}
		if !sends {
			w.groupsGap = d.groupsGap(true, "the entry has no %s", d.Claims.Groups)
		}
	}
	return nil
}

// sendsGroups reports whether the directory sends the groups of anybody. If it does, an entry without groups is in
// none.
func (d *directory) sendsGroups(conn *ldap.Conn) (bool, error) {
	found, err := conn.Search(ldap.NewSearchRequest(d.UserBase, ldap.ScopeWholeSubtree, ldap.NeverDerefAliases, 1,
		seconds(directoryTime), false, "("+d.Claims.Groups+"=*)", []string{d.Claims.Groups}, nil))
	if err != nil && !refusesGroups(err) && !ldap.IsErrorWithCode(err, ldap.ErrorFilterCompile) {
		return false, fmt.Errorf("search people with groups below %s: %w", d.UserBase, err)
	}
	return found != nil && slices.ContainsFunc(found.Entries, func(entry *ldap.Entry) bool {
		list, _ := listed(entry, d.Claims.Groups)
		return len(list) > 0
	}), nil
}

// groupPage is how many groups gpulab asks for at once; Active Directory sends 1000 at most.
const groupPage = 500

// groupSearch is one search for groups.
type groupSearch struct{ base, filter string }

// groupSearches returns the searches for a person's groups.
func (d *directory) groupSearches(username string, entry *ldap.Entry) (list []groupSearch) {
	primary := primaryFilter(entry)
	if d.GroupBase != "" {
		// A person may have several names. Groups that list names may distinguish upper and lower case.
		filter := ""
		for _, name := range append([]string{username}, values(entry, d.Claims.Username)...) {
			for _, written := range []string{name, strings.ToLower(name)} {
				if part := fillFilter(d.GroupFilter, written, entry.DN); !strings.Contains(filter, part) {
					filter += part
				}
			}
		}
		list = append(list, groupSearch{d.GroupBase, "(|" + filter + primary + ")"})
	}
	// Active Directory's usual primary group, Domain Users, is not where the lab's groups are.
	if base := domainOf(d.UserBase); primary != "" && d.Type == typeActiveDirectory && base != "" &&
		!sameGroup(d.GroupBase, base) {
		list = append(list, groupSearch{base, primary})
	}
	return list
}

// primaryFilter returns the filter for a person's primary group, which does not list them as a member: by gidNumber for
// POSIX accounts, by objectSid for Active Directory. It is empty if the entry names no primary group.
func primaryFilter(entry *ldap.Entry) string {
	filter := ""
	if number := first(entry, "gidNumber"); digits(number) {
		filter += "(&(|(objectClass=posixGroup)(objectClass=group))(gidNumber=" + number + "))"
	}
	if sid := primarySID(rawValue(entry, "objectSid"), first(entry, "primaryGroupID")); sid != nil {
		filter += "(objectSid=" + escapeBytes(sid) + ")"
	}
	if strings.Count(filter, "(objectSid=") > 0 && strings.HasPrefix(filter, "(&") {
		filter = "(|" + filter + ")"
	}
	return filter
}

func digits(text string) bool {
	return text != "" && len(text) <= 10 && !strings.ContainsFunc(text, func(r rune) bool { return r < '0' || r > '9' })
}

// primarySID returns the security identifier (SID) of a group in a person's domain: the person's SID with the group's
// number as its last part. It returns nil if either argument is malformed.
func primarySID(person []byte, group string) []byte {
	number, err := strconv.ParseUint(group, 10, 32)
	// A SID has a revision, the number of its parts, six bytes for the authority, and four bytes for each part.
	if err != nil || len(person) < 12 || person[0] != 1 || len(person) != 8+4*int(person[1]) {
		return nil
	}
	return binary.LittleEndian.AppendUint32(slices.Clone(person[:len(person)-4]), uint32(number))
}

// escapeBytes escapes bytes as a value in a filter.
func escapeBytes(value []byte) string {
	var b strings.Builder
	for _, c := range value {
		fmt.Fprintf(&b, `\%02x`, c)
	}
	return b.String()
}

// domainOf returns the end of a DN that names a domain, such as dc=example,dc=org; empty if there is none.
func domainOf(text string) string {
	dn, err := ldap.ParseDN(text)
	if err != nil {
		return ""
	}
	i := len(dn.RDNs)
	for i > 0 && len(dn.RDNs[i-1].Attributes) == 1 && strings.EqualFold(dn.RDNs[i-1].Attributes[0].Type, "dc") {
		i--
	}
	return (&ldap.DN{RDNs: dn.RDNs[i:]}).String()
}

// refusesGroups reports whether a directory answers, but sends only some of the groups or none.
func refusesGroups(err error) bool {
	return ldap.IsErrorAnyOf(err, ldap.LDAPResultSizeLimitExceeded, ldap.LDAPResultTimeLimitExceeded,
		ldap.LDAPResultAdminLimitExceeded,
		ldap.LDAPResultReferral, ldap.LDAPResultNoSuchObject, ldap.LDAPResultInsufficientAccessRights,
		ldap.LDAPResultInappropriateMatching,
		ldap.LDAPResultUnwillingToPerform)
}

// resultOf names the result that a directory answered with.
func resultOf(err error) string {
	var result *ldap.Error
	if errors.As(err, &result) {
		return ldap.LDAPResultCodeMap[result.ResultCode]
	}
	return printable(err.Error())
}

func (d *directory) ids() []string {
	if d.Claims.ID != "" {
		return []string{d.Claims.ID}
	}
	return idAttributes
}

// subject returns the ID that never belongs to somebody else, from the first of these attributes that the entry has.
// Active Directory's is binary.
func subject(entry *ldap.Entry, ids []string) string {
	for _, id := range ids {
		if value := rawValue(entry, id); value != nil {
			if strings.EqualFold(id, "objectGUID") || !utf8.Valid(value) {
				return hex.EncodeToString(value)
			}
			return string(value)
		}
	}
	return ""
}

// rawValue returns the only value of an attribute; nil if it has none or several.
func rawValue(entry *ldap.Entry, name string) []byte {
	for _, attribute := range entry.Attributes {
		if strings.EqualFold(attribute.Name, name) && len(attribute.ByteValues) == 1 && len(attribute.ByteValues[0]) > 0 {
			return attribute.ByteValues[0]
		}
	}
	return nil
}

// listed returns the values of an attribute. If there are many, Active Directory sends only the first, and calls the
// attribute memberOf;range=0-1499. whole reports whether these are all values.
func listed(entry *ldap.Entry, name string) (list []string, whole bool) {
	whole = true
	for _, attribute := range entry.Attributes {
		base, option, _ := strings.Cut(attribute.Name, ";")
		if !strings.EqualFold(base, name) {
			continue
		}
		list = append(list, attribute.Values...)
		if strings.HasPrefix(strings.ToLower(option), "range=") && !strings.HasSuffix(option, "-*") {
			whole = false
		}
	}
	return list, whole
}

func values(entry *ldap.Entry, name string) []string {
	for _, attribute := range entry.Attributes {
		if name != "" && strings.EqualFold(attribute.Name, name) {
			return attribute.Values
		}
	}
	return nil
}

func first(entry *ldap.Entry, name string) string {
	if list := values(entry, name); len(list) > 0 {
		return strings.TrimSpace(list[0])
	}
	return ""
}

// groupNames are the names by which rules may know a group: its DN, and the first part of that.
func groupNames(text string) []string {
	dn, err := ldap.ParseDN(text)
	if err != nil || len(dn.RDNs) == 0 || len(dn.RDNs[0].Attributes) != 1 {
		return []string{text}
	}
	return append([]string{text}, plainNames(dn.RDNs[0].Attributes[0].Value)...)
}

// plainNames leaves out a name that rules would take for the DN of a group: whoever may make groups somewhere could
// give one the name of another.
func plainNames(name string) []string {
	if strings.Contains(name, "=") {
		return nil
	}
	return []string{name}
}

// sameGroup compares as directories do: a DN with a DN, and a plain name with a plain name.
func sameGroup(has, wanted string) bool {
	if !strings.Contains(wanted, "=") {
		return strings.EqualFold(has, wanted)
	}
	a, err := ldap.ParseDN(has)
	if err != nil {
		return false
	}
	b, err := ldap.ParseDN(wanted)
	return err == nil && a.EqualFold(b)
}

// fillFilter puts a name and a DN into a filter. They are escaped, so they stay values whatever stands in them.
func fillFilter(filter, username, dn string) string {
	return strings.NewReplacer("{username}", ldap.EscapeFilter(username), "{dn}", ldap.EscapeFilter(dn)).Replace(filter)
}

// checkDirectory looks for mistakes in what only directories have.
func (c *Config) checkDirectory() (string, string) {
	if !c.directory() {
		return "", ""
	}
	u, err := url.Parse(c.URL)
	switch {
	case err != nil || u.Hostname() == "" || u.Scheme != "ldaps" && u.Scheme != "ldap" || u.Path != "" && u.Path != "/" ||
		u.RawQuery != "":
		return "url", fmt.Sprintf("url of %s is %q, which is no address of a directory; write it like "+
			"ldaps://ldap.example.org", c.Name, c.URL)
	case u.User != nil:
		return "url", fmt.Sprintf("url of %s holds a name or password; bindDN and bindPasswordFile take those", c.Name)
	case u.Scheme == "ldap" && !c.StartTLS:
		return "url", fmt.Sprintf("with url %s, passwords would cross the network for everybody to read; write ldaps:// "+
			"for %s, or add startTLS: true", c.URL, c.Name)
	case u.Scheme == "ldaps" && c.StartTLS:
		return "startTLS", fmt.Sprintf("%s has ldaps:// and startTLS; ldaps:// is encrypted already, so leave startTLS out",
			c.Name)
	case (c.BindDN == "") != (c.BindPasswordFile == ""):
		return "bindDN", fmt.Sprintf("%s needs bindDN and bindPasswordFile together, or neither to search without a name",
			c.Name)
	case c.GroupFilter != "" && c.GroupBase == "":
		return "groupFilter", fmt.Sprintf("%s has a groupFilter, but no groupBase to search below", c.Name)
	}
	for key, dn := range map[string]string{"bindDN": c.BindDN, "userBase": c.UserBase, "groupBase": c.GroupBase} {
		// Active Directory takes other names to bind as: user@example.org.
		if _, err := ldap.ParseDN(dn); err != nil && (key != "bindDN" || c.Type != typeActiveDirectory) {
			return key, fmt.Sprintf("%s of %s is %q, which is no name in a directory; write it like ou=people,dc=example,dc=org",
				key, c.Name, dn)
		}
	}
	whole := c.complete()
	for key, filter := range map[string]string{"userFilter": whole.UserFilter, "groupFilter": whole.GroupFilter} {
		if _, err := ldap.CompileFilter(fillFilter(filter, "name", "cn=name")); err != nil {
			return key, fmt.Sprintf("%s of %s is %q, which is no filter; write it like (uid={username})", key, c.Name, filter)
		}
	}
	if !strings.Contains(whole.UserFilter, "{username}") {
		return "userFilter", fmt.Sprintf("userFilter of %s does not say {username}, so it finds the same people whatever "+
			"name is typed", c.Name)
	}
	return "", ""
}
