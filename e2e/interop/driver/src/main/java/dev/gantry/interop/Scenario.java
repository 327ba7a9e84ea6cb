package dev.gantry.interop;

/** One scenario between clients and a broker; results of its checks are in the stage's outcome. */
@FunctionalInterface
interface Scenario {
    void play(Stage stage) throws Exception;
}
