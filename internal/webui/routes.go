package webui

import (
	"errors"
	"net/http"
	"slices"
	"sort"
	"strings"

	"github.com/gpulab/gpulab/internal/users"
)

// public is the permission of routes that need no session.
const public users.Action = ""

// A handler answers one request of a visitor who was allowed to make it. A
// returned error becomes a page, see problem.go.
type handler func(w http.ResponseWriter, r *http.Request, v visitor) error

// A route is one method and path with the permission it needs.
type route struct {
	method  string // GET also answers HEAD
	path    string // a pattern of http.ServeMux
	need    users.Action
	handler handler
	// script is true where the caller is a program rather than a person: a
	// missing session is answered with 401 instead of the sign-in page.
	script bool
	// maxForm is the largest form taken, in bytes; 0 means the usual maxForm.
	// Such a form may carry a file.
	maxForm int64
	// leaves is true for signing out of a session that was planted in this browser. The cookie has become another one
	// since the page was shown, so the form's token does not fit; the browser itself proves that the form is ours.
	leaves bool
	// streams is true where the handler reads the body itself as it comes,
	// because no memory would hold it, and checks the form's token first of all.
	streams bool
}

// table lists every route. The walk in routes_test.go checks each of them for
// each role.
func (s *Server) table() []route {
	return []route{
		{method: "GET", path: "/login", need: public, handler: s.loginPage},
		{method: "POST", path: "/login", need: public, handler: s.login},
		{method: "POST", path: "/logout", need: public, handler: s.logout, leaves: true},
		{method: "GET", path: "/other-session", need: public, handler: s.otherSessionPage},
		{method: "GET", path: "/setup", need: public, handler: s.linkPage},
		{method: "POST", path: "/setup", need: public, handler: s.redeemLink},
		{method: "GET", path: "/welcome", need: public, handler: s.linkPage},
		{method: "POST", path: "/welcome", need: public, handler: s.redeemLink},
		{method: "GET", path: "/handle/check", need: public, handler: s.checkHandle, script: true},
		{method: "POST", path: "/signin/{provider}", need: public, handler: s.beginSignIn},
		{method: "GET", path: "/signin/{provider}/callback", need: public, handler: s.returnPage},
		{method: "POST", path: "/signin/{provider}/callback", need: public, handler: s.finishSignIn},
		{method: "GET", path: "/handle/choose", need: public, handler: s.choosePage},
		{method: "POST", path: "/handle/choose", need: public, handler: s.choose},
		{method: "GET", path: "/join", need: public, handler: s.joinPage},
		{method: "POST", path: "/join", need: public, handler: s.join},
		{method: "GET", path: "/signup", need: public, handler: s.signUpPage},
		{method: "POST", path: "/signup", need: public, handler: s.signUp},
		{method: "GET", path: "/trust", need: public, handler: s.trustPage},
		{method: "GET", path: "/ca.crt", need: public, handler: s.downloadCA},
		{method: "GET", path: "/cli/{file}", need: public, handler: s.downloadClient},
		{method: "GET", path: "/api", need: public, handler: s.apiPage},

		{method: "GET", path: "/{$}", need: users.ActionSee, handler: s.homePage},
		{method: "GET", path: "/gpus", need: users.ActionSee, handler: s.gpusPage},
		{method: "POST", path: "/gpu-check", need: users.ActionManageLab, handler: s.checkGPU},
		{method: "GET", path: "/gpus/{uuid}", need: users.ActionSee, handler: s.gpuPage},
		{method: "POST", path: "/gpus/{uuid}/lend", need: users.ActionManageLab, handler: s.lendGPU},
		{method: "GET", path: "/gpus/{uuid}/curves", need: users.ActionSee, handler: s.gpuCurves, script: true},
		{method: "GET", path: "/use", need: users.ActionSee, handler: s.usePage},
		{method: "GET", path: "/report", need: users.ActionManageLab, handler: s.reportPage},
		{method: "GET", path: "/report.csv", need: users.ActionManageLab, handler: s.downloadReport},
		{method: "GET", path: "/events", need: users.ActionSee, handler: s.events, script: true},
		{method: "GET", path: "/network", need: users.ActionSee, handler: s.networkPage},
		{method: "GET", path: "/design", need: users.ActionSee, handler: s.designPage},

		{method: "POST", path: "/launch", need: users.ActionLaunch, handler: s.launch},
		{method: "GET", path: "/launches/{id}", need: users.ActionSee, handler: s.launchPage},
		{method: "POST", path: "/launches/{id}/stop", need: users.ActionSee, handler: s.stopLaunch},
		{method: "POST", path: "/launches/{id}/keep", need: users.ActionSee, handler: s.keepLaunch},
		{method: "POST", path: "/launches/{id}/free", need: users.ActionManageLab, handler: s.freeLaunch},
		{method: "POST", path: "/launches/{id}/cancel", need: users.ActionSee, handler: s.cancelLaunch},

		{method: "GET", path: "/jobs", need: users.ActionSee, handler: s.jobsPage},
		{method: "POST", path: "/jobs", need: users.ActionLaunch, handler: s.submitJob, maxForm: maxJobForm},
		{method: "POST", path: "/jobs/notebook", need: users.ActionLaunch, handler: s.submitNotebook},
		{method: "GET", path: "/jobs/{id}", need: users.ActionSee, handler: s.jobPage},
		{method: "GET", path: "/jobs/{id}/log", need: users.ActionSee, handler: s.jobLog},
		{method: "POST", path: "/jobs/{id}/cancel", need: users.ActionSee, handler: s.cancelJob},
		{method: "POST", path: "/jobs/{id}/again", need: users.ActionLaunch, handler: s.runJobAgain},

		{method: "GET", path: "/environments", need: users.ActionSee, handler: s.environmentsPage},
		{method: "POST", path: "/environments", need: users.ActionManageEnvironments, handler: s.createEnvironment,
			maxForm: maxEnvironmentForm},
		{method: "POST", path: "/environments/cancel", need: users.ActionManageEnvironments, handler: s.cancelEnvironment},
		{method: "POST", path: "/environments/default", need: users.ActionManageEnvironments, handler: s.chooseEnvironment},
		{method: "POST", path: "/environments/import", need: users.ActionManageEnvironments, handler: s.importEnvironment,
			streams: true},
		{method: "GET", path: "/environments/{name}/{version}", need: users.ActionSee, handler: s.environmentPage},
		{method: "GET", path: "/environments/{name}/{version}/lock", need: users.ActionSee, handler: s.environmentLock},
		{method: "GET", path: "/environments/{name}/{version}/file", need: users.ActionManageEnvironments,
			handler: s.exportEnvironment},
		{method: "POST", path: "/environments/{name}/{version}/remove", need: users.ActionManageEnvironments,
			handler: s.removeEnvironment},

		{method: "GET", path: "/services", need: users.ActionSee, handler: s.servicesPage},
		{method: "POST", path: "/services", need: users.ActionLaunch, handler: s.startService, maxForm: maxJobForm},
		{method: "POST", path: "/services/tensorboard", need: users.ActionLaunch, handler: s.startTensorBoard},
		{method: "GET", path: "/services/{id}", need: users.ActionSee, handler: s.servicePage},
		{method: "GET", path: "/services/{id}/log", need: users.ActionSee, handler: s.serviceLog},
		{method: "POST", path: "/services/{id}/share", need: users.ActionLaunch, handler: s.shareService},
		{method: "POST", path: "/services/{id}/keep", need: users.ActionLaunch, handler: s.keepService},
		{method: "POST", path: "/services/{id}/restart", need: users.ActionLaunch, handler: s.restartService},
		{method: "POST", path: "/services/{id}/again", need: users.ActionLaunch, handler: s.startServiceAgain},
		{method: "POST", path: "/services/{id}/stop", need: users.ActionSee, handler: s.stopService},

		{method: "GET", path: "/users", need: users.ActionManageUsers, handler: s.usersPage},
		{method: "POST", path: "/users", need: users.ActionManageUsers, handler: s.addUser},
		{method: "POST", path: "/users/{handle}/link", need: users.ActionManageUsers, handler: s.newPasswordLink},
		{method: "POST", path: "/users/{handle}/remove", need: users.ActionManageUsers, handler: s.removeUser},
		{method: "GET", path: "/users/{handle}", need: users.ActionSeePeople, handler: s.personPage},
		{method: "POST", path: "/users/{handle}", need: users.ActionManageUsers, handler: s.changePerson},
		{method: "POST", path: "/users/{handle}/suspend", need: users.ActionManageUsers, handler: s.suspendUser},
		{method: "POST", path: "/users/{handle}/resume", need: users.ActionManageUsers, handler: s.resumeUser},
		{method: "POST", path: "/users/{handle}/undelete", need: users.ActionManageUsers, handler: s.undeleteUser},
		{method: "POST", path: "/users/{handle}/identities/{id}/unlink", need: users.ActionManageUsers,
			handler: s.unlinkOther},
		{method: "POST", path: "/users/{handle}/role-by-rules", need: users.ActionManageUsers, handler: s.roleByRules},
		{method: "GET", path: "/groups", need: users.ActionSeePeople, handler: s.groupsPage},
		{method: "POST", path: "/groups", need: users.ActionManageUsers, handler: s.addGroup},
		{method: "GET", path: "/groups/{group}", need: users.ActionSeePeople, handler: s.groupPage},
		{method: "POST", path: "/groups/{group}/remove", need: users.ActionManageUsers, handler: s.removeGroup},
		{method: "POST", path: "/memberships", need: users.ActionManageUsers, handler: s.setMembers},
		{method: "POST", path: "/memberships/remove", need: users.ActionManageUsers, handler: s.removeMember},
		{method: "GET", path: "/quotas", need: users.ActionManageQuotas, handler: s.quotasPage},
		{method: "POST", path: "/quotas", need: users.ActionManageQuotas, handler: s.setQuota},
		{method: "POST", path: "/quotas/grants", need: users.ActionManageQuotas, handler: s.grantQuota},
		{method: "POST", path: "/quotas/grants/{id}/end", need: users.ActionManageQuotas, handler: s.endGrant},
		{method: "GET", path: "/folders", need: users.ActionSeeFolders, handler: s.foldersPage},
		{method: "POST", path: "/folders", need: users.ActionManageFolders, handler: s.createFolder},
		{method: "GET", path: "/folders/{name}", need: users.ActionSeeFolders, handler: s.folderPage},
		{method: "POST", path: "/folders/{name}", need: users.ActionManageFolders, handler: s.changeFolder},
		{method: "POST", path: "/folders/{name}/delete", need: users.ActionManageFolders, handler: s.deleteFolder},
		{method: "POST", path: "/folders/{name}/undelete", need: users.ActionManageFolders, handler: s.undeleteFolder},
		{method: "POST", path: "/home/clear", need: users.ActionSeeFolders, handler: s.clearHome},
		{method: "GET", path: "/users/import", need: users.ActionManageUsers, handler: s.importPage},
		{method: "POST", path: "/users/import", need: users.ActionManageUsers, handler: s.importPeople,
			maxForm: maxImportForm},
		{method: "GET", path: "/requests", need: users.ActionManageUsers, handler: s.requestsPage},
		{method: "POST", path: "/requests/{id}/approve", need: users.ActionManageUsers, handler: s.approveRequest},
		{method: "POST", path: "/requests/{id}/decline", need: users.ActionManageUsers, handler: s.declineRequest},
		{method: "GET", path: "/invitations", need: users.ActionInvite, handler: s.invitationsPage},
		{method: "POST", path: "/invitations", need: users.ActionInvite, handler: s.invite},
		{method: "POST", path: "/invitations/{id}/revoke", need: users.ActionInvite, handler: s.revokeInvitation},
		{method: "GET", path: "/account", need: users.ActionOwnAccount, handler: s.accountPage},
		{method: "POST", path: "/account/profile", need: users.ActionOwnAccount, handler: s.changeProfile},
		{method: "POST", path: "/account/mail", need: users.ActionOwnAccount, handler: s.chooseMail},
		{method: "POST", path: "/account/password", need: users.ActionOwnAccount, handler: s.changePassword},
		{method: "POST", path: "/account/sessions/{id}/end", need: users.ActionOwnAccount, handler: s.endSession},
		{method: "POST", path: "/account/sessions/end-others", need: users.ActionOwnAccount, handler: s.endOtherSessions},
		{method: "POST", path: "/account/tokens", need: users.ActionOwnAccount, handler: s.createToken},
		{method: "POST", path: "/account/tokens/{id}/revoke", need: users.ActionOwnAccount, handler: s.revokeToken},
		{method: "GET", path: "/account/identities/{provider}", need: users.ActionOwnAccount, handler: s.identityPage},
		{method: "POST", path: "/account/identities/{provider}/link", need: users.ActionOwnAccount, handler: s.linkIdentity},
		{method: "POST", path: "/account/identities/{id}/unlink", need: users.ActionOwnAccount, handler: s.unlinkIdentity},
		{method: "GET", path: "/device", need: users.ActionOwnAccount, handler: s.devicePage},
		{method: "POST", path: "/device", need: users.ActionOwnAccount, handler: s.decideDevice},
		{method: "GET", path: "/cli", need: users.ActionSee, handler: s.cliPage},
		{method: "POST", path: "/account/ssh-keys", need: users.ActionFiles, handler: s.addSSHKey},
		{method: "POST", path: "/account/ssh-keys/{id}/remove", need: users.ActionFiles, handler: s.removeSSHKey},
		{method: "POST", path: "/account/files/close", need: users.ActionFiles, handler: s.closeFiles},
		{method: "GET", path: "/audit", need: users.ActionSeeAudit, handler: s.auditPage},
		{method: "POST", path: "/audit/export", need: users.ActionSeeAudit, handler: s.exportAudit},
		{method: "GET", path: "/status", need: users.ActionManageLab, handler: s.statusPage},
		{method: "GET", path: "/tailnet", need: users.ActionManageLab, handler: s.tailnetPage},
		{method: "POST", path: "/tailnet/up", need: users.ActionManageLab, handler: s.turnTailnetOn},
		{method: "POST", path: "/tailnet/down", need: users.ActionManageLab, handler: s.turnTailnetOff},
		{method: "GET", path: "/tailnet/funnel", need: users.ActionManageLab, handler: s.funnelPage},
		{method: "GET", path: "/tailnet/funnel/open", need: users.ActionManageLab, handler: s.funnelOpenPage},
		{method: "POST", path: "/tailnet/funnel/open", need: users.ActionManageLab, handler: s.openFunnel},
		{method: "POST", path: "/tailnet/funnel/close", need: users.ActionManageLab, handler: s.closeFunnel},
		{method: "POST", path: "/tailnet/logout", need: users.ActionManageLab, handler: s.leaveTailnet},
		{method: "GET", path: "/mail", need: users.ActionManageLab, handler: s.mailPage},
		{method: "POST", path: "/mail/test", need: users.ActionManageLab, handler: s.testMail},
		{method: "GET", path: "/machines", need: users.ActionManageLab, handler: s.machinesPage},
		{method: "POST", path: "/machines/invite", need: users.ActionManageLab, handler: s.inviteMachine},
		{method: "POST", path: "/machines/invitations/{code}/withdraw", need: users.ActionManageLab,
			handler: s.withdrawMachine},
		{method: "POST", path: "/machines/requests/{number}/accept", need: users.ActionManageLab, handler: s.acceptMachine},
		{method: "POST", path: "/machines/requests/{number}/refuse", need: users.ActionManageLab, handler: s.refuseMachine},
		{method: "POST", path: "/machines/cordon", need: users.ActionManageLab, handler: s.cordonMachine},
		{method: "POST", path: "/machines/limit", need: users.ActionManageLab, handler: s.limitMachine},
		{method: "POST", path: "/machines/placing", need: users.ActionManageLab, handler: s.placeNotebooks},
		{method: "POST", path: "/machines/rename", need: users.ActionManageLab, handler: s.renameMachine},
		{method: "POST", path: "/machines/{machine}/uncordon", need: users.ActionManageLab, handler: s.uncordonMachine},
		{method: "POST", path: "/machines/{machine}/keep", need: users.ActionManageLab, handler: s.keepMachine},
		{method: "POST", path: "/machines/{machine}/remove", need: users.ActionManageLab, handler: s.removeMachine},
	}
}

// routes builds the whole handler: headers, recovery and cross-origin checks
// around the table, the embedded files, and pages for what does not exist.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	methods := map[string][]string{}
	for _, rt := range s.table() {
		mux.Handle(rt.method+" "+rt.path, s.guard(rt))
		methods[rt.path] = append(methods[rt.path], rt.method)
	}
	for path, allowed := range methods {
		sort.Strings(allowed)
		wrong := s.wrongMethod(strings.Join(allowed, ", "))
		// One by one: a path for every method would contradict one with a
		// variable in its place, such as /users/import and GET /users/{handle}.
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
			if !slices.Contains(allowed, method) {
				mux.Handle(method+" "+path, wrong)
			}
		}
	}
	mux.Handle("GET /assets/", s.files)
	mux.Handle("/", s.guard(route{need: public, handler: func(http.ResponseWriter, *http.Request, visitor) error {
		return errNoPage
	}}))

	return s.recover(s.headers(s.onlyFromHere(mux)))
}

// wrongMethod answers a known path that was asked with another method.
func (s *Server) wrongMethod(allowed string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", allowed)
		s.fail(w, r, s.visitor(r), errWrongMethod)
	})
}

// recover turns a panic in a handler into the page for unexpected errors.
func (s *Server) recover(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			cause := recover()
			if cause == nil {
				return
			}
			if err, ok := cause.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(cause) // how a handler asks for the connection to be cut
			}
			s.cfg.Log.Error("page panicked", "method", r.Method, "path", r.URL.Path, "panic", cause)
			s.fail(w, r, visitor{}, errPanicked)
		}()
		next.ServeHTTP(w, r)
	})
}
