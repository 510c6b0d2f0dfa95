// What the page's script takes for granted beyond what browsers have: elements of its own templates, and of its own making.

interface ParentNode {
  querySelector(selectors: string): any;
  querySelectorAll(selectors: string): NodeListOf<any>;
}
interface Element {
  closest(selectors: string): any;
}
interface Document {
  getElementById(id: string): any;
}
interface HTMLCanvasElement {
  map?: any;
  gantt?: any;
}
