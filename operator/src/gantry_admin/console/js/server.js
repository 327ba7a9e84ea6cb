// What serves this page. `gantry console` answers the path of this module itself if it lists several groups: then
// `groupsPage` is an object with the name of this group and the address of the list.

export const groupsPage = null;
