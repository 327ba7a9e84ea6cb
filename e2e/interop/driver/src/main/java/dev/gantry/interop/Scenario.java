package dev.gantry.interop;

/** One story between clients and a broker; what it finds goes into the stage's outcome. */
@FunctionalInterface
interface Scenario {
    void play(Stage stage) throws Exception;
}
